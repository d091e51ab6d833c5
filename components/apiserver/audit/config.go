package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
)

// How events are handed to a backend.
const (
	ModeBatch          = "batch"
	ModeBlocking       = "blocking"
	ModeBlockingStrict = "blocking-strict"
)

var modes = []string{ModeBatch, ModeBlocking, ModeBlockingStrict}

// Sending says how events are handed to a backend.
type Sending struct {
	// Mode is one of those above. A request fails in the strict one when its
	// event cannot be stored.
	Mode     string
	Batch    buffered.BatchConfig
	Truncate bool
	Sizes    truncate.Config
	// Version in which events are written.
	Version string
}

// Config of an Auditor, which is off without a policy or without a backend.
type Config struct {
	// PolicyFile says what is recorded of which requests.
	PolicyFile string
	// Path of the log, "-" for standard output; empty: none.
	Path string
	// MaxAge of old logs in days, MaxBackups how many of them, MaxSize in
	// megabytes from which on the log is rotated. Zeros: no limit.
	MaxAge, MaxBackups, MaxSize int
	// Format is "json" or "legacy".
	Format   string
	Compress bool
	Log      Sending
	// WebhookFile is a kubeconfig of where events are sent; empty: nowhere.
	WebhookFile string
	// WebhookBackoff is how long after the first failure it is tried again.
	WebhookBackoff time.Duration
	Webhook        Sending
}

// Flags adds upstream's flags, which set c.
func (c *Config) Flags(f *pflag.FlagSet) {
	f.StringVar(&c.PolicyFile, "audit-policy-file", "", "Policy of what is recorded of which requests.")
	f.StringVar(&c.Path, "audit-log-path", "", "File of audit events; '-' means standard output.")
	f.IntVar(&c.MaxAge, "audit-log-maxage", 366, "Days for which old audit logs are kept; 0: for ever.")
	f.IntVar(&c.MaxBackups, "audit-log-maxbackup", 100, "Old audit logs that are kept; 0: all.")
	f.IntVar(&c.MaxSize, "audit-log-maxsize", 100, "Megabytes from which on the audit log is rotated; 0: 100.")
	f.StringVar(&c.Format, "audit-log-format", auditlog.FormatJson, "Format of audit events: json or legacy.")
	f.BoolVar(&c.Compress, "audit-log-compress", false, "Compress rotated audit logs.")
	c.Log.flags(f, "log", ModeBlocking, buffered.BatchConfig{BufferSize: 10000, MaxBatchSize: 1})
	f.StringVar(&c.WebhookFile, "audit-webhook-config-file", "", "Kubeconfig of where audit events are sent.")
	f.DurationVar(&c.WebhookBackoff, "audit-webhook-initial-backoff", 10*time.Second, "How long after the first failure sending is tried again.")
	c.Webhook.flags(f, "webhook", ModeBatch, buffered.BatchConfig{
		BufferSize: 10000, MaxBatchSize: 400, MaxBatchWait: 30 * time.Second,
		ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15, AsyncDelegate: true,
	})
}

func (s *Sending) flags(f *pflag.FlagSet, name, mode string, batch buffered.BatchConfig) {
	s.Batch = batch
	at := func(flag string) string { return "audit-" + name + "-" + flag }
	f.StringVar(&s.Mode, at("mode"), mode, "How events are handed over: batch, blocking or blocking-strict.")
	f.StringVar(&s.Version, at("version"), auditv1.SchemeGroupVersion.String(), "Version in which events are written.")
	f.IntVar(&s.Batch.BufferSize, at("batch-buffer-size"), batch.BufferSize, "Events that wait for a batch.")
	f.IntVar(&s.Batch.MaxBatchSize, at("batch-max-size"), batch.MaxBatchSize, "Events of a batch.")
	f.DurationVar(&s.Batch.MaxBatchWait, at("batch-max-wait"), batch.MaxBatchWait, "How long a batch is waited for.")
	f.BoolVar(&s.Batch.ThrottleEnable, at("batch-throttle-enable"), batch.ThrottleEnable, "Limit the rate of batches.")
	f.Float32Var(&s.Batch.ThrottleQPS, at("batch-throttle-qps"), batch.ThrottleQPS, "Batches a second.")
	f.IntVar(&s.Batch.ThrottleBurst, at("batch-throttle-burst"), batch.ThrottleBurst, "Batches at the same time.")
	f.BoolVar(&s.Truncate, at("truncate-enabled"), false, "Shorten events and batches that are too large.")
	f.Int64Var(&s.Sizes.MaxBatchSize, at("truncate-max-batch-size"), 10<<20, "Bytes of a batch.")
	f.Int64Var(&s.Sizes.MaxEventSize, at("truncate-max-event-size"), 100<<10, "Bytes of an event; larger ones lose request and response.")
}

func (s *Sending) check(name string) (schema.GroupVersion, error) {
	gv, err := schema.ParseGroupVersion(s.Version)
	switch {
	case !slices.Contains(modes, s.Mode):
		return gv, fmt.Errorf("invalid audit %s mode %s, allowed modes are %q", name, s.Mode, modes)
	case err != nil || gv != auditv1.SchemeGroupVersion:
		return gv, fmt.Errorf("invalid group version %q, allowed versions are %q", s.Version, auditv1.SchemeGroupVersion)
	case s.Truncate && s.Sizes.MaxEventSize <= 0:
		return gv, fmt.Errorf("invalid audit truncate %s max event size %v, must be a positive number", name, s.Sizes.MaxEventSize)
	case s.Truncate && s.Sizes.MaxBatchSize < s.Sizes.MaxEventSize:
		return gv, fmt.Errorf("invalid audit truncate %s max batch size %v, must be greater than max event size (%v)", name, s.Sizes.MaxBatchSize, s.Sizes.MaxEventSize)
	}
	return gv, nil
}

// lenient lets requests go on whose event could not be stored.
type lenient struct{ audit.Backend }

// ProcessEvents as audit.Backend.
func (l lenient) ProcessEvents(events ...*event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}

func (s *Sending) wrap(b audit.Backend, gv schema.GroupVersion) audit.Backend {
	switch s.Mode {
	case ModeBatch:
		b = buffered.NewBackend(b, s.Batch)
	case ModeBlocking:
		b = lenient{b}
	}
	if s.Truncate {
		b = truncate.NewBackend(b, s.Sizes, gv)
	}
	return b
}

// New makes an Auditor; nil when cfg records nothing.
func New(cfg Config) (*Auditor, error) {
	if cfg.PolicyFile == "" && cfg.Path == "" && cfg.WebhookFile == "" {
		return nil, nil
	}
	var backends []audit.Backend
	if cfg.Path != "" {
		b, err := cfg.logBackend()
		if err != nil {
			return nil, err
		}
		backends = append(backends, b)
	}
	if cfg.WebhookFile != "" {
		gv, err := cfg.Webhook.check("webhook")
		if err != nil {
			return nil, err
		}
		b, err := auditwebhook.NewBackend(cfg.WebhookFile, gv, webhook.DefaultRetryBackoffWithInitialDelay(cfg.WebhookBackoff), nil)
		if err != nil {
			return nil, fmt.Errorf("initializing audit webhook: %w", err)
		}
		backends = append(backends, cfg.Webhook.wrap(b, gv))
	}
	if cfg.PolicyFile == "" || len(backends) == 0 {
		return nil, nil // upstream records nothing then either
	}
	p, err := policy.LoadPolicyFromFile(cfg.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("loading audit policy file: %w", err)
	}
	return newAuditor(policy.NewPolicyRuleEvaluator(p), audit.Union(backends...)), nil
}

func (c *Config) logBackend() (audit.Backend, error) {
	gv, err := c.Log.check("log")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(auditlog.AllowedFormats, c.Format) {
		return nil, fmt.Errorf("invalid audit log format %s, allowed formats are %q", c.Format, auditlog.AllowedFormats)
	}
	if c.MaxAge < 0 || c.MaxBackups < 0 || c.MaxSize < 0 {
		return nil, errors.New("--audit-log-maxage, --audit-log-maxbackup and --audit-log-maxsize can't be a negative number")
	}
	out, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	return c.Log.wrap(auditlog.NewBackend(out, c.Format, gv), gv), nil
}

func (c *Config) open() (io.Writer, error) {
	if c.Path == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(c.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil || c.MaxSize == 0 {
		return f, err
	}
	return &lumberjack.Logger{Filename: c.Path, MaxAge: c.MaxAge, MaxBackups: c.MaxBackups, MaxSize: c.MaxSize, Compress: c.Compress}, f.Close()
}
