package addons

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/base/backoff"
	"hyperkube/internal/base/lifecycle"
	"hyperkube/manifests"
)

// Config configures a Manager, which applies and prunes the add-ons of a cluster.
type Config struct {
	Reconciler *Reconciler
	Kube       kubernetes.Interface
	// ConfigMaps delivers changes of the settings. The caller starts it.
	ConfigMaps cache.SharedIndexInformer
	// Enable are names of add-ons that are enabled when the manager starts. Saved are those that an earlier version has
	// saved in the configuration of the cluster: they are enabled unless the settings contain them.
	Enable, Saved []string
	Log           *slog.Logger
}

// Manager applies the enabled add-ons of a cluster and prunes the disabled ones when the settings change.
//
// Admission policies of users can reject an object. A webhook with the failure policy Fail rejects
// requests until its pods run, and a policy that forbids an add-on rejects it forever. So an add-on
// that fails is retried, and does not delay readiness if its objects exist from an earlier start.
type Manager struct {
	cfg Config
	// firstRetry is the delay before the first retry of an add-on. It doubles with each retry, up to maxRetry.
	firstRetry, maxRetry time.Duration
	// changed receives a value when the settings may have changed.
	changed chan struct{}
	ready   chan struct{}
	// lastError is the error of the last failed attempt; nil if none failed. A later success does not reset it.
	lastError atomic.Pointer[string]
	// settings are the settings at the start. They are set before ready is closed.
	settings Settings
}

// NewManager validates cfg and adds an event handler to the informer. A Manager that is not run leaves the handler
// there.
func NewManager(cfg Config) (*Manager, error) {
	if cfg.Reconciler == nil || cfg.Kube == nil || cfg.ConfigMaps == nil || cfg.Log == nil {
		return nil, errors.New("managing add-ons requires a reconciler, a client, an informer and a logger")
	}
	m := &Manager{
		cfg: cfg, firstRetry: 200 * time.Millisecond, maxRetry: time.Minute,
		changed: make(chan struct{}, 1), ready: make(chan struct{}),
	}
	notify := func(any) {
		select {
		case m.changed <- struct{}{}:
		default:
		}
	}
	_, err := cfg.ConfigMaps.AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = d.Obj
			}
			cm, ok := obj.(*corev1.ConfigMap)
			return ok && cm.Namespace == metav1.NamespaceSystem && cm.Name == SettingsName
		},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: notify, UpdateFunc: func(_, obj any) { notify(obj) }, DeleteFunc: notify},
	})
	return m, err
}

// Ready returns a channel that is closed when every object of the add-ons that were enabled at the start exists, from
// this start or an earlier one. An add-on whose setting changes meanwhile is not waited for.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Describe returns the error of the last failed attempt, even if a later attempt succeeded, or "" if none failed.
func (m *Manager) Describe(context.Context) string {
	if text := m.lastError.Load(); text != nil {
		return *text
	}
	return ""
}

// WasEnabled reports whether an add-on was enabled when the manager became ready. It must not be called
// earlier.
func (m *Manager) WasEnabled(name string) bool {
	a, err := manifests.FindAddon(name)
	return err == nil && m.settings.Enabled(a)
}

// job is the goroutine that reconciles one add-on with a setting. It retries until it succeeds or is stopped.
type job struct {
	*lifecycle.Task
	enabled bool
}

// Run reconciles all add-ons, and again those whose setting changes or that are enabled again, until ctx is done. It
// always returns nil.
func (m *Manager) Run(ctx context.Context) error {
	jobs := map[string]*job{}
	var missing, waiting sync.WaitGroup
	defer func() {
		for _, j := range jobs {
			j.Stop()
		}
		waiting.Wait()
	}()
	settings, err := m.firstSettings(ctx)
	if err != nil {
		return nil // ctx is done
	}
	m.settings = settings
	for _, a := range manifests.Addons() {
		exists := func() {}
		if settings.Enabled(a) {
			missing.Add(1)
			exists = missing.Done
		}
		jobs[a.Name] = m.start(ctx, a, settings.Enabled(a), exists)
	}
	waiting.Go(func() {
		if missing.Wait(); ctx.Err() == nil {
			close(m.ready)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
		}
		settings := m.observed()
		for _, a := range manifests.Addons() {
			enabled, j := settings.Enabled(a), jobs[a.Name]
			if j.enabled == enabled && !repeated(settings, a) {
				continue
			}
			j.Stop()
			if j.enabled != enabled {
				m.cfg.Log.Info("add-on was enabled or disabled; applying or deleting its objects now", "addon", a.Name, "enabled", enabled)
			}
			jobs[a.Name] = m.start(ctx, a, enabled, func() {})
		}
	}
}

// repeated reports whether an add-on is reconciled after every change of the settings, even if its own setting has not
// changed. This is so for add-ons that a user has enabled, because `addon enable` of such an add-on restores objects
// that were deleted.
func repeated(s Settings, a manifests.Addon) bool { return s[a.Name] == settingEnabled }

// firstSettings enables the add-ons of the configuration in the settings and returns the settings. It retries until it
// succeeds or ctx is done.
func (m *Manager) firstSettings(ctx context.Context) (Settings, error) {
	retry := backoff.Backoff{First: m.firstRetry, Max: m.maxRetry}
	for {
		s, err := Enable(ctx, m.cfg.Kube, m.cfg.Enable, m.cfg.Saved)
		if err == nil {
			return s, nil
		}
		m.failed("reading or writing the settings of add-ons failed; no add-on is applied, retrying with back-off", err)
		if !retry.Pause(ctx) {
			return nil, ctx.Err()
		}
	}
}

// observed returns the settings in the informer, or nil if their ConfigMap does not exist.
func (m *Manager) observed() Settings {
	obj, exists, err := m.cfg.ConfigMaps.GetStore().GetByKey(metav1.NamespaceSystem + "/" + SettingsName)
	if cm, ok := obj.(*corev1.ConfigMap); ok && exists && err == nil {
		return cm.Data
	}
	return nil
}

// failed logs a warning with an error and args, and stores the error for Describe.
func (m *Manager) failed(message string, err error, args ...any) {
	text := err.Error()
	m.lastError.Store(&text)
	m.cfg.Log.Warn(message, append(args, "err", err)...)
}

// start starts reconciling an add-on. It calls exists when all objects of the add-on exist, or when the job succeeds or
// is stopped.
func (m *Manager) start(ctx context.Context, a manifests.Addon, enabled bool, exists func()) *job {
	return &job{enabled: enabled, Task: lifecycle.StartTask(ctx, func(ctx context.Context) {
		exists := sync.OnceFunc(exists)
		defer exists()
		m.reconcile(ctx, a, enabled, exists)
	})}
}

// reconcile reconciles an add-on until it succeeds or ctx is done. It reports an error in the log, as an event and in
// the parent of the set, but only if the error differs from that of the previous attempt.
func (m *Manager) reconcile(ctx context.Context, a manifests.Addon, enabled bool, exists func()) {
	retry, before := backoff.Backoff{First: m.firstRetry, Max: m.maxRetry}, ""
	for {
		status, err := m.cfg.Reconciler.Reconcile(ctx, a, enabled)
		if ctx.Err() != nil {
			return
		}
		if status.Complete {
			exists()
		}
		if err == nil {
			m.report(ctx, a, status)
			return
		}
		if text := err.Error(); text != before {
			m.failed("reconciling add-on failed; its objects may be missing or outdated, retrying with back-off", err, "addon", a.Name, "enabled", enabled)
			m.warn(ctx, a, "ReconcileFailed", text)
			m.writeError(ctx, a, text)
			before = text
		}
		if !retry.Pause(ctx) {
			return
		}
	}
}

// report logs whether another server has replaced a reconciled add-on, and which objects of other clients prevent it
// from working. The latter also become events.
func (m *Manager) report(ctx context.Context, a manifests.Addon, s Status) {
	if s.ReplacedBy != "" {
		m.cfg.Log.Info("APIService of add-on refers to another Service, which replaces the add-on; objects of the add-on were deleted", "addon", a.Name, "service", s.ReplacedBy)
	}
	for _, ref := range s.Foreign {
		m.cfg.Log.Warn("object of add-on belongs to another client; it is left unchanged and the add-on may not work: delete the object and enable the add-on again", "addon", a.Name, "object", ref.String())
		m.warn(ctx, a, "ForeignObject", ref.String()+" exists and is not part of the add-on. Delete it and enable the add-on again.")
	}
}

// writeError writes the error of an add-on to the parent of its set, where `hyperkube status` reads it. The next
// success removes it.
func (m *Manager) writeError(ctx context.Context, a manifests.Addon, text string) {
	set := SetOf(a)
	set.Data = map[string]string{dataError: text}
	if err := m.cfg.Reconciler.Client.WriteData(ctx, set); err != nil && ctx.Err() == nil {
		m.cfg.Log.Debug("writing the error of an add-on failed; `hyperkube status` does not show it, no retry until the error changes", "addon", a.Name, "err", err)
	}
}

// warn creates a Warning event on the parent of an add-on.
func (m *Manager) warn(ctx context.Context, a manifests.Addon, reason, message string) {
	if err := m.cfg.Reconciler.Client.Warn(ctx, SetOf(a), reason, message); err != nil && ctx.Err() == nil {
		m.cfg.Log.Debug("creating an event about an add-on failed; the error is only in the log, not retried", "addon", a.Name, "err", err)
	}
}
