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

// Modes of delivering events to a backend: ModeBatch delivers them in batches in the background,
// ModeBlocking delivers each event before the request continues, and ModeBlockingStrict also
// rejects the request if its event cannot be delivered.
const (
	ModeBatch          = "batch"
	ModeBlocking       = "blocking"
	ModeBlockingStrict = "blocking-strict"
)

var modes = []string{ModeBatch, ModeBlocking, ModeBlockingStrict}

// BackendConfig configures how events are delivered to one backend, the log or the webhook.
type BackendConfig struct {
	// Mode is one of the Mode constants. With ModeBlockingStrict a request fails if its event cannot be
	// stored.
	Mode  string
	Batch buffered.BatchConfig
	// Truncate removes the request and response of events that exceed Sizes, and splits large batches.
	Truncate bool
	Sizes    truncate.Config
	// Version is the API version of the written events.
	Version string
}

// Config is the configuration of an Auditor. Auditing is disabled without a policy or without a
// backend.
type Config struct {
	// PolicyFile is the file with the audit policy.
	PolicyFile string
	// Path of the log file, "-" for standard output, or empty for no log.
	Path string
	// MaxAge is the retention of old logs in days, MaxBackups their number, and MaxSize the size in
	// megabytes at which the log is rotated. Zero means no limit.
	MaxAge, MaxBackups, MaxSize int
	// Format is "json" or "legacy".
	Format string
	// Compress compresses rotated log files with gzip.
	Compress bool
	Log      BackendConfig
	// WebhookFile is a kubeconfig of the server that receives events. Empty means no webhook.
	WebhookFile string
	// WebhookBackoff is the delay before the first retry.
	WebhookBackoff time.Duration
	Webhook        BackendConfig
}

// Flags adds upstream's --audit-… flags to f. They set the fields of c and their defaults.
func (c *Config) Flags(f *pflag.FlagSet) {
	f.StringVar(&c.PolicyFile, "audit-policy-file", "", "Path to the file that defines the audit policy configuration.")
	f.StringVar(&c.Path, "audit-log-path", "", "If set, all requests coming to the apiserver will be logged to this file. '-' means standard out.")
	f.IntVar(&c.MaxAge, "audit-log-maxage", 366, "The maximum number of days to retain old audit log files. Zero means no limit.")
	f.IntVar(&c.MaxBackups, "audit-log-maxbackup", 100, "The maximum number of old audit log files to retain. Zero means no limit.")
	f.IntVar(&c.MaxSize, "audit-log-maxsize", 100, "The maximum size in megabytes of the audit log file before it gets rotated. Zero disables rotation by size.")
	f.StringVar(&c.Format, "audit-log-format", auditlog.FormatJson, "Format of saved audits: json or legacy.")
	f.BoolVar(&c.Compress, "audit-log-compress", false, "If set, the rotated log files will be compressed using gzip.")
	c.Log.flags(f, "log", ModeBlocking, buffered.BatchConfig{BufferSize: 10000, MaxBatchSize: 1})
	f.StringVar(&c.WebhookFile, "audit-webhook-config-file", "", "Path to a kubeconfig formatted file that defines the audit webhook configuration.")
	f.DurationVar(&c.WebhookBackoff, "audit-webhook-initial-backoff", 10*time.Second, "The amount of time to wait before retrying the first failed request.")
	c.Webhook.flags(f, "webhook", ModeBatch, buffered.BatchConfig{
		BufferSize: 10000, MaxBatchSize: 400, MaxBatchWait: 30 * time.Second,
		ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15, AsyncDelegate: true,
	})
}

// flags adds the flags of a backend, which begin with "audit-" and its name. mode and batch are the
// defaults.
func (s *BackendConfig) flags(f *pflag.FlagSet, name, mode string, batch buffered.BatchConfig) {
	s.Batch = batch
	at := func(flag string) string { return "audit-" + name + "-" + flag }
	f.StringVar(&s.Mode, at("mode"), mode, "Strategy for sending audit events: batch, blocking or blocking-strict.")
	f.StringVar(&s.Version, at("version"), auditv1.SchemeGroupVersion.String(), "API group and version used for serializing audit events.")
	f.IntVar(&s.Batch.BufferSize, at("batch-buffer-size"), batch.BufferSize, "The size of the buffer to store events before batching and writing. Only used in batch mode.")
	f.IntVar(&s.Batch.MaxBatchSize, at("batch-max-size"), batch.MaxBatchSize, "The maximum size of a batch. Only used in batch mode.")
	f.DurationVar(&s.Batch.MaxBatchWait, at("batch-max-wait"), batch.MaxBatchWait, "The amount of time to wait before force writing the batch that hadn't reached the max size. Only used in batch mode.")
	f.BoolVar(&s.Batch.ThrottleEnable, at("batch-throttle-enable"), batch.ThrottleEnable, "Whether batching throttling is enabled. Only used in batch mode.")
	f.Float32Var(&s.Batch.ThrottleQPS, at("batch-throttle-qps"), batch.ThrottleQPS, "Maximum average number of batches per second. Only used in batch mode.")
	f.IntVar(&s.Batch.ThrottleBurst, at("batch-throttle-burst"), batch.ThrottleBurst, "Maximum number of requests sent at the same moment if ThrottleQPS was not utilized before. Only used in batch mode.")
	f.BoolVar(&s.Truncate, at("truncate-enabled"), false, "Whether event and batch truncating is enabled.")
	f.Int64Var(&s.Sizes.MaxBatchSize, at("truncate-max-batch-size"), 10<<20, "Maximum size of the batch sent to the underlying backend, in bytes.")
	f.Int64Var(&s.Sizes.MaxEventSize, at("truncate-max-event-size"), 100<<10, "Maximum size of the audit event sent to the underlying backend, in bytes. The request and response of larger events are removed.")
}

// check validates the flags of a backend. name is the backend's name in the flags, "log" or "webhook". It returns the
// API version in which the backend encodes events.
func (s *BackendConfig) check(name string) (schema.GroupVersion, error) {
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

// lenient is the backend of ModeBlocking. It reports that events were stored even if they were not, so that the
// requests continue.
type lenient struct{ audit.Backend }

// ProcessEvents implements audit.Backend. It reports success even if the wrapped backend has
// failed.
func (l lenient) ProcessEvents(events ...*event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}

// wrap returns b with what the flags select: batching, or ignoring failures in ModeBlocking, and truncation of large
// events. gv is the version of the encoded events.
func (s *BackendConfig) wrap(b audit.Backend, gv schema.GroupVersion) audit.Backend {
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

// CheckPolicy returns an error if a file is not a valid audit policy.
func CheckPolicy(file string) error {
	_, err := policy.LoadPolicyFromFile(file)
	return err
}

// New returns an Auditor, or nil if auditing is disabled because there is no policy file or no backend. It returns an
// error for invalid settings, an invalid policy, or a log file that cannot be opened. The caller must call Run.
func New(cfg Config) (a *Auditor, err error) {
	if cfg.PolicyFile == "" && cfg.Path == "" && cfg.WebhookFile == "" {
		return nil, nil
	}
	var backends []audit.Backend
	var logFile io.Closer
	if cfg.Path != "" {
		b, file, err := cfg.logBackend()
		if err != nil {
			return nil, err
		}
		logFile = file
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
		return nil, nil // as in upstream, auditing is disabled
	}
	p, err := policy.LoadPolicyFromFile(cfg.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("loading audit policy file: %w", err)
	}
	a = newAuditor(policy.NewPolicyRuleEvaluator(p), audit.Union(backends...))
	a.logFile = logFile
	return a, nil
}

// logBackend returns the backend that writes the log, and the log file, which the caller closes. The file is nil if
// the log is standard output. It returns an error for invalid settings or if the file cannot be opened.
func (c *Config) logBackend() (audit.Backend, io.Closer, error) {
	gv, err := c.Log.check("log")
	if err != nil {
		return nil, nil, err
	}
	if !slices.Contains(auditlog.AllowedFormats, c.Format) {
		return nil, nil, fmt.Errorf("invalid audit log format %s, allowed formats are %q", c.Format, auditlog.AllowedFormats)
	}
	if c.MaxAge < 0 || c.MaxBackups < 0 || c.MaxSize < 0 {
		return nil, nil, errors.New("--audit-log-maxage, --audit-log-maxbackup and --audit-log-maxsize can't be a negative number")
	}
	out, err := c.open()
	if err != nil {
		return nil, nil, fmt.Errorf("opening the audit log: %w", err)
	}
	file, _ := out.(io.Closer)
	if c.Path == "-" {
		file = nil
	}
	return c.Log.wrap(auditlog.NewBackend(out, c.Format, gv), gv), file, nil
}

// open opens the audit log: standard output for "-", a plain file if MaxSize is zero, or otherwise a file that is
// rotated when it reaches its maximum size. It creates the directory if it does not exist.
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
