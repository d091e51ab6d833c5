package encryption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"

	"hyperkube/internal/configfile"
)

// Config of Transformers.
type Config struct {
	// Path of the EncryptionConfiguration.
	Path string
	// Reload follows the file. Any resource may then come to be encrypted.
	Reload bool
	// ServerID tells key management services who asks; it may be empty.
	ServerID string
	// Log may be nil.
	Log *slog.Logger
}

// Transformers turn stored values into what is on the disk and back, with all
// of upstream's providers. Methods of nil Transformers are those of a
// configuration that encrypts nothing. They are safe for several goroutines.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kms-provider/
type Transformers struct {
	cfg Config
	// lasting is for what lives as long as the Transformers.
	lasting context.Context //nolint:containedctx // it is theirs, which outlives calls
	current atomic.Pointer[configuration]
}

// configuration is what one content of the file says.
type configuration struct {
	*encryptionconfig.EncryptionConfiguration

	// end the goroutines of its key management services.
	end context.CancelFunc
}

func (c *configuration) transformer(gr schema.GroupResource) value.Transformer {
	return encryptionconfig.StaticTransformers(c.Transformers).TransformerForResource(gr)
}

// Load reads the configuration. With a key management service it starts
// goroutines that end with ctx.
func Load(ctx context.Context, cfg Config) (*Transformers, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	metrics.RegisterMetrics()
	t := &Transformers{cfg: cfg, lasting: ctx}
	first, err := t.read()
	if err != nil {
		return nil, err
	}
	t.current.Store(first)
	metrics.RecordEncryptionConfigLastConfigInfo(cfg.ServerID, first.EncryptionFileContentHash)
	return t, nil
}

func (t *Transformers) read() (*configuration, error) {
	ctx, end := context.WithCancel(t.lasting)
	cfg, err := encryptionconfig.LoadEncryptionConfig(ctx, t.cfg.Path, t.cfg.Reload, t.cfg.ServerID)
	if err != nil {
		end()
		return nil, fmt.Errorf("loading the encryption configuration %s: %w", t.cfg.Path, err)
	}
	return &configuration{cfg, end}, nil
}

// For returns the transformer of a resource. It is to be asked once for each
// resource. It is nil for one whose values stay as they are for ever.
func (t *Transformers) For(gr schema.GroupResource) value.Transformer {
	switch {
	case t == nil:
		return nil
	case t.cfg.Reload:
		return following{t, gr}
	case t.Encrypts(gr):
		return t.current.Load().transformer(gr)
	}
	return nil
}

// Encrypts tells whether the configuration names a resource, itself or with
// others.
func (t *Transformers) Encrypts(gr schema.GroupResource) bool {
	if t == nil {
		return false
	}
	for _, r := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if t.current.Load().Transformers[r] != nil {
			return true
		}
	}
	return false
}

// Check is one of the health checks of key management services.
type Check struct {
	Name string
	Look func(context.Context) error
}

// Checks tell whether the key management services work. There are none without
// such services, but with Reload, as they may come.
func (t *Transformers) Checks() []Check {
	if t == nil {
		return nil
	}
	var out []Check
	for i, one := range t.current.Load().HealthChecks {
		out = append(out, Check{one.Name(), func(ctx context.Context) error { return t.current.Load().healthy(ctx, i) }})
	}
	return out
}

func (c *configuration) healthy(ctx context.Context, check int) error {
	one := c.HealthChecks[check]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+one.Name(), nil)
	if err != nil {
		return err
	}
	return one.Check(req)
}

// Run takes up changes of the file until ctx ends. A file that cannot be used
// is logged and tried again, and what was there stays.
func (t *Transformers) Run(ctx context.Context) error {
	if t == nil || !t.cfg.Reload {
		<-ctx.Done()
		return nil
	}
	return configfile.FollowRetrying(ctx, t.cfg.Path, t.cfg.Log, func() bool {
		changed, err := t.reload(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			metrics.RecordEncryptionConfigAutomaticReloadFailure(t.cfg.ServerID)
			t.cfg.Log.ErrorContext(ctx, "the encryption configuration cannot be used, the one before stays", "file", t.cfg.Path, "error", err)
			return false
		case changed:
			metrics.RecordEncryptionConfigAutomaticReloadSuccess(t.cfg.ServerID, t.current.Load().EncryptionFileContentHash)
			t.cfg.Log.InfoContext(ctx, "the encryption configuration has changed", "file", t.cfg.Path)
		}
		return true
	})
}

// reload tells whether the file has another content than before, which is then
// used.
func (t *Transformers) reload(ctx context.Context) (bool, error) {
	before := t.current.Load()
	hash, err := encryptionconfig.GetEncryptionConfigHash(t.cfg.Path)
	if err != nil || hash == before.EncryptionFileContentHash {
		return false, err
	}
	next, err := t.read()
	if err != nil {
		return false, err
	}
	if err := next.settle(ctx); err != nil {
		next.end()
		return false, err
	}
	t.current.Store(next)
	// Who asked the services of before may still wait for them. The clock, as
	// that is all there is: they tell nobody when they are done.
	time.AfterFunc(before.KMSCloseGracePeriod, before.end)
	return true, nil
}

// settle waits until the key management services answer, for as long as they
// may take. They tell it only when they are asked.
func (c *configuration) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(c.KMSCloseGracePeriod, 10*time.Second))
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		var errs []error
		for i := range c.HealthChecks {
			errs = append(errs, c.healthy(ctx, i))
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("the new key management services do not answer: %w", err)
		}
	}
}

// following is the transformer of a resource by what the file says at a time.
type following struct {
	all      *Transformers
	resource schema.GroupResource
}

// TransformFromStorage as value.Transformer.
func (f following) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	return f.all.current.Load().transformer(f.resource).TransformFromStorage(ctx, data, at)
}

// TransformToStorage as value.Transformer.
func (f following) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	return f.all.current.Load().transformer(f.resource).TransformToStorage(ctx, data, at)
}
