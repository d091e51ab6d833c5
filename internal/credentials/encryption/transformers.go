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

	"hyperkube/internal/base/configfile"
)

// Config names the EncryptionConfiguration file for Load and Validate, and says whether changes of it are applied.
type Config struct {
	// Path is the path of the EncryptionConfiguration file.
	Path string
	// Reload makes Run watch the file for changes. Every resource can then become encrypted later.
	Reload bool
	// ServerID identifies the API server in the metrics of key management services. It may be
	// empty.
	ServerID string
	// Log receives a message for each reload. If it is nil, nothing is logged.
	Log *slog.Logger
}

// Transformers encrypt values before they are stored in etcd and decrypt them, according to an
// EncryptionConfiguration with any of upstream's providers. The methods of nil Transformers behave
// like a configuration that encrypts nothing. They are safe for concurrent use.
//
// https://kubernetes.io/docs/tasks/administer-cluster/kms-provider/
type Transformers struct {
	cfg Config
	// ctx is the context of goroutines that run as long as the Transformers.
	ctx     context.Context //nolint:containedctx // it is theirs, which outlives calls
	current atomic.Pointer[configuration]
}

// configuration is the parsed EncryptionConfiguration file, with the transformers that it defines. A reload
// replaces it by a new one.
type configuration struct {
	*encryptionconfig.EncryptionConfiguration

	// cancel stops the goroutines of the key management services.
	cancel context.CancelFunc
}

// transformer returns the transformer for a resource, or one that does not encrypt if the file does not name the
// resource.
func (c *configuration) transformer(gr schema.GroupResource) value.Transformer {
	return encryptionconfig.StaticTransformers(c.Transformers).TransformerForResource(gr)
}

// Load reads the EncryptionConfiguration file and returns its Transformers, or an error if the file
// is missing or invalid. For key management services it starts goroutines that stop when ctx is
// done.
func Load(ctx context.Context, cfg Config) (*Transformers, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	metrics.RegisterMetrics()
	t := &Transformers{cfg: cfg, ctx: ctx}
	first, err := t.read()
	if err != nil {
		return nil, err
	}
	t.current.Store(first)
	metrics.RecordEncryptionConfigLastConfigInfo(cfg.ServerID, first.EncryptionFileContentHash)
	return t, nil
}

// read reads the file and returns its configuration, whose goroutines for key management services run until its
// cancel is called or the context of Load is done. It returns an error if the file is missing or invalid.
func (t *Transformers) read() (*configuration, error) {
	ctx, end := context.WithCancel(t.ctx)
	cfg, err := encryptionconfig.LoadEncryptionConfig(ctx, t.cfg.Path, t.cfg.Reload, t.cfg.ServerID)
	if err != nil {
		end()
		return nil, fmt.Errorf("loading encryption configuration %s: %w", t.cfg.Path, err)
	}
	return &configuration{cfg, end}, nil
}

// For returns the transformer with which the storage of a resource encrypts and decrypts values, or nil if the
// configuration does not name the resource and Reload is not set. With Reload, it returns a transformer for every
// resource, which follows changes of the configuration. Call For once per resource.
func (t *Transformers) For(gr schema.GroupResource) value.Transformer {
	switch {
	case t == nil:
		return nil
	case t.cfg.Reload:
		return reloadingTransformer{t, gr}
	case t.Encrypts(gr):
		return t.current.Load().transformer(gr)
	}
	return nil
}

// Encrypts reports whether the present configuration names a resource, directly or by wildcard.
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

// Check is a health check of a key management service, which the API server includes in its health
// endpoints.
type Check struct {
	Name  string
	Check func(context.Context) error
}

// Checks returns the health checks of the key management services. Without KMS providers there are
// none, unless Reload is set, because a reload can add KMS providers.
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

// healthy runs the health check with the index check of the configuration's key management services, and returns its
// error.
func (c *configuration) healthy(ctx context.Context, check int) error {
	one := c.HealthChecks[check]
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+one.Name(), nil)
	if err != nil {
		return err
	}
	return one.Check(req)
}

// Run reloads the file when it changes, until ctx is done; it then returns nil. If the new file is invalid or one of
// its key management services is not healthy, Run logs the error, keeps the current configuration and retries with
// increasing delays. Without Reload it only waits for ctx.
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
			t.cfg.Log.ErrorContext(ctx, "reloading encryption configuration failed; the previous configuration stays in use, retrying with back-off: correct the file or make its KMS plugins available", "file", t.cfg.Path, "err", err)
			return false
		case changed:
			metrics.RecordEncryptionConfigAutomaticReloadSuccess(t.cfg.ServerID, t.current.Load().EncryptionFileContentHash)
			t.cfg.Log.InfoContext(ctx, "encryption configuration reloaded after a change of the file, it is in use now", "file", t.cfg.Path)
		}
		return true
	})
}

// reload reads the file again if its content has changed, waits until the new key management services are healthy,
// and then switches to the new configuration. It reports whether it has switched. After an error, or if the content
// is the same, the previous configuration remains in use.
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
		next.cancel()
		return false, err
	}
	t.current.Store(next)
	// Requests to the previous services may still be in progress. There is no event for their
	// completion, so wait for the grace period.
	time.AfterFunc(before.KMSCloseGracePeriod, before.cancel)
	return true, nil
}

// settle waits until all key management services of a new configuration are healthy, for the KMS grace period, but at
// least 10 seconds. It returns an error if they are still unhealthy then or ctx is done. It polls, because their
// state is only known after a health check.
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
			return fmt.Errorf("new key management services are not healthy: %w", err)
		}
	}
}

// reloadingTransformer is the transformer of a resource that uses the present configuration for
// each value, so that it follows reloads.
type reloadingTransformer struct {
	all      *Transformers
	resource schema.GroupResource
}

// TransformFromStorage implements value.Transformer: it decrypts data that was read from etcd with the present
// configuration. It reports whether the value is stale, that is, must be written again with the present key.
func (f reloadingTransformer) TransformFromStorage(ctx context.Context, data []byte, at value.Context) ([]byte, bool, error) {
	return f.all.current.Load().transformer(f.resource).TransformFromStorage(ctx, data, at)
}

// TransformToStorage implements value.Transformer: it encrypts data with the present configuration before it is
// written to etcd.
func (f reloadingTransformer) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	return f.all.current.Load().transformer(f.resource).TransformToStorage(ctx, data, at)
}
