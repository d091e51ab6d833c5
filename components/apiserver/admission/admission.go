// Package admission mutates and validates write requests after authorization. It contains the
// admission plugins of kube-apiserver, one per file, and runs them in upstream's order.
//
// Plugins read from informers. If an informer does not have an object, the plugin queries the API,
// so that no decision depends on how far the informer lags behind. Plugins that must see all
// objects of a kind wait for their informer on the first request that needs it. Objects are of the
// published v1 types.
//
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/
package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// Config configures a Chain: which admission plugins are enabled, and the clients, informers and settings that the
// plugins use.
type Config struct {
	// Informers provides cached objects. New requests informers from it, so it must not have been
	// started.
	Informers informers.SharedInformerFactory
	// Kube is a client of this API server with superuser permissions.
	Kube kubernetes.Interface
	// Pods reads pods. Nil means a pod informer, which keeps all pods decoded.
	Pods Pods
	// Authorizer is called by plugins that check permissions.
	Authorizer authorizer.Authorizer
	// Enable and Disable are the values of --enable-admission-plugins and
	// --disable-admission-plugins.
	Enable, Disable []string
	// Files are the plugin configurations by plugin name, as returned by LoadConfiguration.
	Files map[string][]byte
	// TolerationSeconds are added to pods that do not set their own. Nil means five minutes.
	TolerationSeconds *TolerationSeconds
	// Kinds returns the plural name of the resource of a kind, or "" if the kind is not served, and whether it is
	// namespaced.
	Kinds func(schema.GroupVersionKind) (resource string, namespaced bool)
	// Extra are plugins constructed elsewhere (webhooks, policies, quota), by name. A plugin with
	// the name of an upstream plugin runs in its position if that plugin is enabled. All others
	// always run, after the upstream plugins.
	Extra map[string]admission.Interface
	// Last runs after all other plugins. It is the privilege escalation check of RBAC. It may be
	// nil.
	Last admission.ValidationInterface
	// Serves reports whether the API serves a resource. Plugins whose resources are not served are
	// left out. Nil means that all are served.
	Serves func(schema.GroupVersionResource) bool
	// Metrics is the Prometheus registry with which metrics are registered. It may be nil.
	Metrics prometheus.Registerer
}

// pluginFactory constructs an admission plugin. It returns nil if the plugin would have nothing to do, because the
// API does not serve its resources or there is no authorizer, and an error if the plugin's configuration is invalid
// or missing.
type pluginFactory func(*Config) (admission.Interface, error)

// pluginSpec is one of upstream's admission plugins: its name, whether it is enabled by default, and the function that
// constructs it.
type pluginSpec struct {
	name string
	// enabledByDefault reports whether the plugin is enabled by default.
	enabledByDefault bool
	// factory constructs the plugin. It is nil for plugins that only Config.Extra can supply, and for plugins that do
	// nothing because this server does not serve the kinds or fields that they check.
	factory pluginFactory
}

// pluginOrder lists upstream's plugins in the order in which they run.
//
// https://github.com/kubernetes/kubernetes/blob/master/pkg/kubeapiserver/options/plugins.go
var pluginOrder = []pluginSpec{
	{"AlwaysAdmit", false, newAlwaysAdmit},
	{"NamespaceAutoProvision", false, newNamespaceAutoProvision},
	{"NamespaceLifecycle", true, newNamespaceLifecycle},
	{"NamespaceExists", false, newNamespaceExists},
	{"LimitPodHardAntiAffinityTopology", false, newHardAntiAffinity},
	{"LimitRanger", true, newLimitRanger},
	{"ServiceAccount", true, newServiceAccount},
	{"NodeRestriction", true, newNodeRestriction},
	{"TaintNodesByCondition", true, newTaintNodes},
	{"AlwaysPullImages", false, newAlwaysPullImages},
	{"ImagePolicyWebhook", false, newImagePolicy},
	{"PodSecurity", true, newPodSecurity},
	{"PodNodeSelector", false, newPodNodeSelector},
	{"Priority", true, newPriority},
	{"DefaultTolerationSeconds", true, newDefaultTolerations},
	{"PodTolerationRestriction", false, newTolerationRestriction},
	{"EventRateLimit", false, newEventRateLimit},
	{"ExtendedResourceToleration", false, newExtendedResourceToleration},
	{"DefaultStorageClass", true, newDefaultStorageClass},
	{"StorageObjectInUseProtection", true, newStorageInUse},
	{"PodGroupProtection", true, nil},
	{"OwnerReferencesPermissionEnforcement", false, newOwnerReferences},
	{"PersistentVolumeClaimResize", true, newClaimResize},
	{"RuntimeClass", true, newRuntimeClass},
	{"CertificateApproval", true, newCertificateApproval},
	{"CertificateSigning", true, newCertificateSigning},
	{"ClusterTrustBundleAttest", true, newTrustBundleAttest},
	{"CertificateSubjectRestriction", true, newCertificateSubject},
	{"DefaultIngressClass", true, newDefaultIngressClass},
	{"DenyServiceExternalIPs", false, newDenyExternalIPs},
	{"PodTopologyLabels", true, newPodTopologyLabels},
	{"PodGroupWorkloadExists", true, nil},
	{"NodeDeclaredFeatureValidator", true, newDeclaredFeatures},
	{"JobValidation", true, nil},
	{"PodResizeValidator", true, newPodResize},
	{"MutatingAdmissionPolicy", true, nil},
	{"MutatingAdmissionWebhook", true, nil},
	{"ValidatingAdmissionPolicy", true, nil},
	{"ValidatingAdmissionWebhook", true, nil},
	{"ResourceQuota", true, newResourceQuota},
	{"AlwaysDeny", false, newAlwaysDeny},
}

// Chain is the admission of the API server: it runs the enabled plugins in order. It is safe for
// concurrent use.
type Chain struct {
	names    []string
	mutating []mutating
	// validating plugins run after all mutating plugins.
	validating []validating
	durations  *durationMetrics
	// admitTimer and validateTimer measure the total duration of all plugins.
	admitTimer, validateTimer *timer
}

// mutating and validating are an enabled plugin in one of the two admission phases, with the timer that measures its
// calls. A nil timer measures nothing.
type (
	mutating struct {
		admission.MutationInterface
		timer *timer
	}
	validating struct {
		admission.ValidationInterface
		timer *timer
	}
)

var (
	_ admission.MutationInterface   = (*Chain)(nil)
	_ admission.ValidationInterface = (*Chain)(nil)
)

// New creates the enabled plugins and returns the chain of them. Plugins request informers, so the caller must start
// the informers afterwards. Checks that upstream makes outside of plugins, such as admin access to devices, are
// always added. New returns an error for unknown plugin names and invalid configurations.
func New(cfg Config) (*Chain, error) {
	if cfg.Informers == nil || cfg.Kube == nil {
		return nil, errors.New("admission requires informers and a client")
	}
	if cfg.Serves == nil {
		cfg.Serves = func(schema.GroupVersionResource) bool { return true }
	}
	if err := CheckNames(cfg.Enable, cfg.Disable); err != nil {
		return nil, err
	}
	measured, err := newDurationMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("registering admission metrics: %w", err)
	}
	c := &Chain{durations: measured, admitTimer: measured.step("admit"), validateTimer: measured.step("validate")}
	for _, k := range pluginOrder {
		on := (k.enabledByDefault || slices.Contains(cfg.Enable, k.name)) && !slices.Contains(cfg.Disable, k.name)
		switch extra := cfg.Extra[k.name]; {
		case !on:
		case extra != nil:
			c.add(k.name, extra)
		case k.factory != nil:
			plugin, err := k.factory(&cfg)
			if err != nil {
				return nil, fmt.Errorf("admission plugin %s: %w", k.name, err)
			}
			if plugin != nil {
				c.add(k.name, plugin)
			}
		}
	}
	var others []string
	for name := range cfg.Extra {
		if !slices.ContainsFunc(pluginOrder, func(k pluginSpec) bool { return k.name == name }) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	for _, name := range others {
		c.add(name, cfg.Extra[name])
	}
	if cfg.Serves(resourcev1.SchemeGroupVersion.WithResource("resourceclaims")) {
		c.validating = append(c.validating, validating{ValidationInterface: newAdminAccess(&cfg)}, validating{ValidationInterface: newClaimStatusAuthorization(&cfg)})
	}
	if cfg.Last != nil {
		c.validating = append(c.validating, validating{ValidationInterface: cfg.Last})
	}
	return c, nil
}

// CheckNames returns an error if a plugin name in one of the flags is unknown or is in both.
func CheckNames(enable, disable []string) error {
	var errs []error
	unknown := func(flag string, names []string) {
		for _, name := range names {
			if !slices.ContainsFunc(pluginOrder, func(k pluginSpec) bool { return k.name == name }) {
				errs = append(errs, fmt.Errorf("%s plugin %q is unknown", flag, name))
			}
		}
	}
	unknown("enable-admission-plugins", enable)
	unknown("disable-admission-plugins", disable)
	var both []string
	for _, name := range enable {
		if slices.Contains(disable, name) {
			both = append(both, name)
		}
	}
	if len(both) > 0 {
		slices.Sort(both)
		errs = append(errs, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", slices.Compact(both)))
	}
	return errors.Join(errs...)
}

// add appends a plugin to the mutating plugins, the validating ones or both, depending on the
// interfaces that it implements.
func (c *Chain) add(name string, plugin admission.Interface) {
	c.names = append(c.names, name)
	if m, ok := plugin.(admission.MutationInterface); ok {
		c.mutating = append(c.mutating, mutating{m, c.durations.plugin(name, "admit")})
	}
	if v, ok := plugin.(admission.ValidationInterface); ok {
		c.validating = append(c.validating, validating{v, c.durations.plugin(name, "validate")})
	}
}

// Plugins returns the names of the enabled plugins in the order in which they run.
func (c *Chain) Plugins() []string { return slices.Clone(c.names) }

// Handles implements admission.Interface. It reports whether any enabled plugin handles the operation.
func (c *Chain) Handles(op admission.Operation) bool {
	return slices.ContainsFunc(c.mutating, func(p mutating) bool { return p.Handles(op) }) ||
		slices.ContainsFunc(c.validating, func(p validating) bool { return p.Handles(op) })
}

// Admit runs the mutating plugins in order, until one rejects the request. If a webhook or a policy requests
// reinvocation, all mutating plugins run a second time: built-in plugins see the changes of webhooks, and webhooks
// see the changes of built-in plugins.
//
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#reinvocation-policy
func (c *Chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	began := time.Now()
	defer func() { c.admitTimer.observe(a.GetOperation(), began, err) }()
	if err := c.admit(ctx, a, o); err != nil {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return c.admit(ctx, a, o)
}

// admit runs each mutating plugin that handles the operation once, in order, until one rejects the request.
func (c *Chain) admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	for _, p := range c.mutating {
		if !p.Handles(a.GetOperation()) {
			continue
		}
		began := time.Now()
		err := p.Admit(ctx, a, o)
		p.timer.observe(a.GetOperation(), began, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate runs the validating plugins that handle the operation in order, until one rejects the request.
func (c *Chain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	start := time.Now()
	defer func() { c.validateTimer.observe(a.GetOperation(), start, err) }()
	for _, p := range c.validating {
		if !p.Handles(a.GetOperation()) {
			continue
		}
		began := time.Now()
		err := p.Validate(ctx, a, o)
		p.timer.observe(a.GetOperation(), began, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// operations lists the operations that a plugin handles. Plugins embed it to implement Handles.
type operations []admission.Operation

// Handles implements admission.Interface. It reports whether op is in the list.
func (ops operations) Handles(op admission.Operation) bool { return slices.Contains(ops, op) }

var (
	onCreate       = operations{admission.Create}
	onUpdate       = operations{admission.Update}
	onCreateUpdate = operations{admission.Create, admission.Update}
)

// isRequestFor reports whether the request is for the resource of the group, in any version, and not for a
// subresource.
func isRequestFor(a admission.Attributes, group, resource string) bool {
	r := a.GetResource()
	return r.Resource == resource && r.Group == group && a.GetSubresource() == ""
}

// forbid returns a Forbidden error (403) for the object of the request, with the formatted message. Most plugins
// reject requests with it.
func forbid(a admission.Attributes, format string, args ...any) error {
	return admission.NewForbidden(a, fmt.Errorf(format, args...))
}
