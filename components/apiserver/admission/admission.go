// Package admission changes and refuses writes after authorization: the plugins
// that a kube-apiserver runs, one file each, in its order.
//
// Plugins decide by informers. Where an informer has not what is asked for, the
// API itself is asked, so that nothing depends on how far an informer is;
// plugins that must see all objects of a kind wait for their informer on the
// first request that needs it. Objects are of the published v1 types.
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

// Config says which plugins run and what they decide by.
type Config struct {
	// Informers must not have been started.
	Informers informers.SharedInformerFactory
	// Kube is a superuser's way to the same API.
	Kube kubernetes.Interface
	// Pods reads pods; nil means an informer, which keeps all of them decoded.
	Pods Pods
	// Authorizer is asked by plugins that guard a verb.
	Authorizer authorizer.Authorizer
	// Enable and Disable are --enable-admission-plugins and
	// --disable-admission-plugins.
	Enable, Disable []string
	// Files are the configurations of plugins by their names, as
	// LoadConfiguration returns them.
	Files map[string][]byte
	// TolerationSeconds that pods get which do not say; nil: five minutes.
	TolerationSeconds *TolerationSeconds
	// Kinds finds the resource of a kind; "" when it is not served.
	Kinds func(schema.GroupVersionKind) (resource string, namespaced bool)
	// Extra are plugins made elsewhere, by their names: webhooks, policies,
	// quota. Those of upstream's names run in upstream's place when they are
	// on; others always, at the end.
	Extra map[string]admission.Interface
	// Last is asked after all: the check of escalation. May be nil.
	Last admission.ValidationInterface
	// Serves tells which resources the API has. Plugins whose resources it
	// has not are left out. Nil means all.
	Serves func(schema.GroupVersionResource) bool
	// Metrics is where metrics are registered. It may be nil.
	Metrics prometheus.Registerer
}

// maker makes a plugin, or nil where the API does not serve what it needs.
type maker func(*Config) (admission.Interface, error)

// known is one of upstream's plugins.
type known struct {
	name string
	// on tells whether it runs unless disabled.
	on bool
	// make is nil for those made elsewhere, and for those of features that this
	// server has not: their kinds or fields are not served.
	make maker
}

// order is upstream's.
//
// https://github.com/kubernetes/kubernetes/blob/master/pkg/kubeapiserver/options/plugins.go
var order = []known{
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

// Chain asks its plugins one after another. It is safe for several goroutines.
type Chain struct {
	names    []string
	mutating []mutating
	// validating come after all mutating ones.
	validating []validating
	durations  *durations
	// admitting and checking time all of them.
	admitting, checking *timer
}

// mutating and validating are plugins with their timers, which may be nil.
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

// New makes the chain and registers with the informers that it needs.
func New(cfg Config) (*Chain, error) {
	if cfg.Informers == nil || cfg.Kube == nil {
		return nil, errors.New("admission takes informers and a client")
	}
	if cfg.Serves == nil {
		cfg.Serves = func(schema.GroupVersionResource) bool { return true }
	}
	if err := checkNames(cfg.Enable, cfg.Disable); err != nil {
		return nil, err
	}
	measured, err := newDurations(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics of admission: %w", err)
	}
	c := &Chain{durations: measured, admitting: measured.step("admit"), checking: measured.step("validate")}
	for _, k := range order {
		on := (k.on || slices.Contains(cfg.Enable, k.name)) && !slices.Contains(cfg.Disable, k.name)
		switch extra := cfg.Extra[k.name]; {
		case !on:
		case extra != nil:
			c.add(k.name, extra)
		case k.make != nil:
			plugin, err := k.make(&cfg)
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
		if !slices.ContainsFunc(order, func(k known) bool { return k.name == name }) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	for _, name := range others {
		c.add(name, cfg.Extra[name])
	}
	if cfg.Serves(resourcev1.SchemeGroupVersion.WithResource("resourceclaims")) {
		c.validating = append(c.validating, validating{ValidationInterface: newAdminAccess(&cfg)}, validating{ValidationInterface: newClaimWriters(&cfg)})
	}
	if cfg.Last != nil {
		c.validating = append(c.validating, validating{ValidationInterface: cfg.Last})
	}
	return c, nil
}

// checkNames says which names are unknown, and which are in both lists.
func checkNames(enable, disable []string) error {
	var errs []error
	unknown := func(flag string, names []string) {
		for _, name := range names {
			if !slices.ContainsFunc(order, func(k known) bool { return k.name == name }) {
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

func (c *Chain) add(name string, plugin admission.Interface) {
	c.names = append(c.names, name)
	if m, ok := plugin.(admission.MutationInterface); ok {
		c.mutating = append(c.mutating, mutating{m, c.durations.plugin(name, "admit")})
	}
	if v, ok := plugin.(admission.ValidationInterface); ok {
		c.validating = append(c.validating, validating{v, c.durations.plugin(name, "validate")})
	}
}

// Plugins names the plugins that run, in order.
func (c *Chain) Plugins() []string { return slices.Clone(c.names) }

// Handles implements admission.Interface.
func (c *Chain) Handles(op admission.Operation) bool {
	return slices.ContainsFunc(c.mutating, func(p mutating) bool { return p.Handles(op) }) ||
		slices.ContainsFunc(c.validating, func(p validating) bool { return p.Handles(op) })
}

// Admit implements admission.MutationInterface. When a webhook or a policy
// asks for it, all are asked a second time: plugins see what webhooks changed,
// and those what plugins made of that.
//
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#reinvocation-policy
func (c *Chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	began := time.Now()
	defer func() { c.admitting.took(a.GetOperation(), began, err) }()
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

func (c *Chain) admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	for _, p := range c.mutating {
		if !p.Handles(a.GetOperation()) {
			continue
		}
		began := time.Now()
		err := p.Admit(ctx, a, o)
		p.timer.took(a.GetOperation(), began, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (c *Chain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	start := time.Now()
	defer func() { c.checking.took(a.GetOperation(), start, err) }()
	for _, p := range c.validating {
		if !p.Handles(a.GetOperation()) {
			continue
		}
		began := time.Now()
		err := p.Validate(ctx, a, o)
		p.timer.took(a.GetOperation(), began, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// operations are those that a plugin wants to see. Plugins embed it.
type operations []admission.Operation

// Handles implements admission.Interface.
func (ops operations) Handles(op admission.Operation) bool { return slices.Contains(ops, op) }

var (
	onCreate       = operations{admission.Create}
	onUpdate       = operations{admission.Update}
	onCreateUpdate = operations{admission.Create, admission.Update}
)

// is tells whether the request is for a resource itself.
func is(a admission.Attributes, group, resource string) bool {
	r := a.GetResource()
	return r.Resource == resource && r.Group == group && a.GetSubresource() == ""
}

// forbid is the answer of most plugins.
func forbid(a admission.Attributes, format string, args ...any) error {
	return admission.NewForbidden(a, fmt.Errorf(format, args...))
}
