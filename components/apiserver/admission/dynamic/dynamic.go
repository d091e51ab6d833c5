// Package dynamic is the part of admission that users configure: webhooks and
// admission policies. The plugins are those of k8s.io/apiserver, which convert
// objects through what Objects returns.
//
// They cost nothing until they are needed: a plugin, with its CEL environments,
// its timers and its informers of services, is made when the first object that
// configures it appears. Until then a request asks one counter.
//
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
// https://kubernetes.io/docs/reference/access-authn-authz/mutating-admission-policy/
package dynamic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	clientdynamic "k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/apiserver/informed"
	"hyperkube/components/apiserver/registry"
	"hyperkube/internal/api"
	"hyperkube/internal/api/admissionregistration"
	"hyperkube/internal/measure"
)

// Config of Plugins.
type Config struct {
	// Informers must not have been started.
	Informers informers.SharedInformerFactory
	// Kube and Dynamic are a superuser's ways to the same API.
	Kube    kubernetes.Interface
	Dynamic clientdynamic.Interface
	// Authorizer is what expressions ask by "authorizer".
	Authorizer authorizer.Authorizer
	// Registry knows the kinds of parameters.
	Registry *registry.Registry
	// Files are the plugins' own configurations, by plugin name.
	Files map[string][]byte
	// Requests measures what is asked of webhooks; nil: nothing does.
	Requests *measure.Requests
}

// Plugins are the four plugins. Make them with New.
type Plugins struct {
	cfg    Config
	static *manifests
	// stop is closed when Run ends: what plugins run ends with it.
	stop   chan struct{}
	mapper meta.RESTMapper
	all    map[string]admission.Interface
}

// New registers with the informers that tell whether a plugin is needed.
func New(cfg Config) (*Plugins, error) {
	if cfg.Informers == nil || cfg.Kube == nil || cfg.Dynamic == nil || cfg.Authorizer == nil || cfg.Registry == nil {
		return nil, errors.New("dynamic admission takes informers, clients, an authorizer and a registry")
	}
	static, err := newManifests(cfg.file, func(plural string) *api.Resource {
		if res := cfg.Registry.Lookup(registrationv1.SchemeGroupVersion.WithResource(plural)); res != nil {
			return res.Resource
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	p := &Plugins{cfg: cfg, static: static, stop: make(chan struct{}), mapper: mapper{cfg.Registry}, all: map[string]admission.Interface{}}
	v1 := cfg.Informers.Admissionregistration().V1()
	all := []admission.Operation{admission.Connect, admission.Create, admission.Delete, admission.Update}
	for _, one := range []struct {
		name     string
		validate bool
		ops      []admission.Operation
		// informer is of what a plugin has nothing to do without: policies
		// need bindings.
		informer cache.SharedIndexInformer
		make     func(name string) (admission.Interface, error)
	}{
		{mutatingwebhook.PluginName, false, all, v1.MutatingWebhookConfigurations().Informer(), p.mutatingWebhook},
		{validatingwebhook.PluginName, true, all, v1.ValidatingWebhookConfigurations().Informer(), p.validatingWebhook},
		{mutatingpolicy.PluginName, false, []admission.Operation{admission.Connect, admission.Create, admission.Update}, v1.MutatingAdmissionPolicyBindings().Informer(), p.mutatingPolicy},
		{validatingpolicy.PluginName, true, all, v1.ValidatingAdmissionPolicyBindings().Informer(), p.validatingPolicy},
	} {
		l := &lazy{name: one.name, ops: one.ops, make: one.make}
		dir, err := static.folder(one.name)
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", one.name, err)
		}
		if dir != "" {
			l.count.Add(1) // whatever the API has
		}
		handle, err := one.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { l.count.Add(1) },
			DeleteFunc: func(any) { l.count.Add(-1) },
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		l.gate = informed.NewGate(handle.HasSyncedChecker())
		if one.validate {
			p.all[one.name] = validating{l}
		} else {
			p.all[one.name] = mutating{l}
		}
	}
	return p, nil
}

// All are the plugins by upstream's names. The map is shared.
func (p *Plugins) All() map[string]admission.Interface { return p.all }

// Run keeps what the plugins run until ctx ends.
func (p *Plugins) Run(ctx context.Context) error {
	<-ctx.Done()
	close(p.stop)
	return nil
}

// file is the configuration of a plugin; nil when there is none.
func (c *Config) file(name string) io.Reader {
	if data := c.Files[name]; len(data) > 0 {
		return bytes.NewReader(data)
	}
	return nil
}

// webhook is what the two plugins for webhooks have in common.
type webhook interface {
	admission.Interface
	admission.InitializationValidator
	SetServiceResolver(webhookutil.ServiceResolver)
	SetAuthenticationInfoResolverWrapper(webhookutil.AuthenticationInfoResolverWrapper)
	SetExternalKubeClientSet(kubernetes.Interface)
	SetExternalKubeInformerFactory(informers.SharedInformerFactory)
	SetUnconditionalAuthorizer(authorizer.UnconditionalAuthorizer)
	SetDrainedNotification(<-chan struct{})
	initializer.WantsManifestLoaders
}

func (p *Plugins) mutatingWebhook(name string) (admission.Interface, error) {
	w, err := mutatingwebhook.NewMutatingWebhook(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	w.SetExcludedAdmissionResources(admissionregistration.Virtual())
	w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return w, p.startWebhook(w)
}

func (p *Plugins) validatingWebhook(name string) (admission.Interface, error) {
	w, err := validatingwebhook.NewValidatingAdmissionWebhook(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	w.SetExcludedAdmissionResources(admissionregistration.Virtual())
	w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return w, p.startWebhook(w)
}

func (p *Plugins) startWebhook(w webhook) error {
	w.SetServiceResolver(newServices(p.cfg.Informers))
	if p.cfg.Requests != nil {
		w.SetAuthenticationInfoResolverWrapper(measured(p.cfg.Requests))
	}
	w.SetExternalKubeClientSet(p.cfg.Kube)
	w.SetExternalKubeInformerFactory(p.cfg.Informers)
	w.SetUnconditionalAuthorizer(p.cfg.Authorizer)
	w.SetDrainedNotification(p.stop)
	w.SetManifestLoaders(p.static.loaders())
	if err := w.ValidateInitialization(); err != nil {
		return err
	}
	p.cfg.Informers.Start(p.stop)
	return nil
}

// policy is what the two plugins for policies have in common.
type policy interface {
	admission.Interface
	admission.InitializationValidator
	SetExternalKubeClientSet(kubernetes.Interface)
	SetExternalKubeInformerFactory(informers.SharedInformerFactory)
	SetRESTMapper(meta.RESTMapper)
	SetDynamicClient(clientdynamic.Interface)
	SetUnconditionalAuthorizer(authorizer.UnconditionalAuthorizer)
	SetDrainedNotification(<-chan struct{})
	initializer.WantsManifestLoaders
}

func (p *Plugins) mutatingPolicy(name string) (admission.Interface, error) {
	x, err := mutatingpolicy.NewPlugin(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	x.SetExcludedAdmissionResources(admissionregistration.Virtual())
	x.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return x, p.startPolicy(x)
}

func (p *Plugins) validatingPolicy(name string) (admission.Interface, error) {
	x, err := validatingpolicy.NewPlugin(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	x.SetExcludedAdmissionResources(admissionregistration.Virtual())
	return x, p.startPolicy(x)
}

func (p *Plugins) startPolicy(x policy) error {
	x.SetExternalKubeClientSet(p.cfg.Kube)
	x.SetExternalKubeInformerFactory(p.cfg.Informers)
	x.SetRESTMapper(p.mapper)
	x.SetDynamicClient(p.cfg.Dynamic)
	x.SetUnconditionalAuthorizer(p.cfg.Authorizer)
	x.SetDrainedNotification(p.stop)
	x.SetManifestLoaders(p.static.loaders())
	if err := x.ValidateInitialization(); err != nil {
		return err
	}
	p.cfg.Informers.Start(p.stop)
	return nil
}

// measured returns what makes requests to webhooks be measured.
func measured(by *measure.Requests) webhookutil.AuthenticationInfoResolverWrapper {
	return func(how webhookutil.AuthenticationInfoResolver) webhookutil.AuthenticationInfoResolver {
		wrap := func(cfg *rest.Config, err error) (*rest.Config, error) {
			if err != nil {
				return nil, err
			}
			cfg = rest.CopyConfig(cfg)
			cfg.Wrap(by.Wrap)
			return cfg, nil
		}
		return &webhookutil.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(hostPort string) (*rest.Config, error) { return wrap(how.ClientConfigFor(hostPort)) },
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				return wrap(how.ClientConfigForService(name, namespace, port))
			},
		}
	}
}
