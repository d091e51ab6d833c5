// Package dynamic provides the part of admission that users configure: webhooks and admission
// policies. The plugins are those of k8s.io/apiserver. They convert objects with package objects.
//
// A plugin costs nothing until it is needed. The plugin, its CEL environments, its timers and its
// Service informers are created when the first object that configures it appears. Until then each
// request only checks a counter.
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
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	clientdynamic "k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"hyperkube/components/apiserver/registry"
	"hyperkube/components/apiserver/syncgate"
	"hyperkube/internal/api"
	"hyperkube/internal/api/admissionregistration"
	"hyperkube/internal/serving/componentmetrics"
)

// Config is the configuration of Plugins, which run webhooks and admission policies.
type Config struct {
	// Informers provides cached objects. New requests informers from it, so it must not have been
	// started.
	Informers informers.SharedInformerFactory
	// Kube and Dynamic are clients of this API server with superuser permissions.
	Kube    kubernetes.Interface
	Dynamic clientdynamic.Interface
	// Authorizer implements the CEL variable "authorizer".
	Authorizer authorizer.Authorizer
	// Registry contains the kinds that policies may use as parameters.
	Registry *registry.Registry
	// Files are the plugins' own configurations, by plugin name.
	Files map[string][]byte
	// Requests measures requests to webhooks. Nil means that they are not measured.
	Requests *componentmetrics.Requests
}

// Plugins contains the four plugins for mutating and validating webhooks and policies. Use New to
// create it.
type Plugins struct {
	cfg    Config
	static *manifests
	// stop is closed when Run returns. It stops the goroutines of the plugins.
	stop   chan struct{}
	mapper meta.RESTMapper
	all    map[string]admission.Interface
}

// New returns the plugins. It requests informers for the objects that configure them, so the caller must start the
// informers afterwards. It returns an error if a required field of cfg is nil, or a configuration file or a static
// manifest is invalid.
func New(cfg Config) (*Plugins, error) {
	if cfg.Informers == nil || cfg.Kube == nil || cfg.Dynamic == nil || cfg.Authorizer == nil || cfg.Registry == nil {
		return nil, errors.New("dynamic admission requires informers, clients, an authorizer and a registry")
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
		// informer watches the objects without which a plugin has nothing to do: for policies, the
		// bindings.
		informer cache.SharedIndexInformer
		make     func(name string) (admission.Interface, error)
	}{
		{mutatingwebhook.PluginName, false, all, v1.MutatingWebhookConfigurations().Informer(), p.mutatingWebhook},
		{validatingwebhook.PluginName, true, all, v1.ValidatingWebhookConfigurations().Informer(), p.validatingWebhook},
		{mutatingpolicy.PluginName, false, []admission.Operation{admission.Connect, admission.Create, admission.Update}, v1.MutatingAdmissionPolicyBindings().Informer(), p.mutatingPolicy},
		{validatingpolicy.PluginName, true, all, v1.ValidatingAdmissionPolicyBindings().Informer(), p.validatingPolicy},
	} {
		l := &lazy{name: one.name, ops: one.ops, make: one.make}
		dir, err := static.directory(one.name)
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", one.name, err)
		}
		if dir != "" {
			l.count.Add(1) // manifests configure the plugin regardless of API objects
		}
		handle, err := one.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { l.count.Add(1) },
			DeleteFunc: func(any) { l.count.Add(-1) },
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		l.gate = syncgate.NewGate(handle.HasSyncedChecker())
		if one.validate {
			p.all[one.name] = validating{l}
		} else {
			p.all[one.name] = mutating{l}
		}
	}
	return p, nil
}

// All returns the plugins by upstream's names, for Config.Extra of package admission. The map is
// shared.
func (p *Plugins) All() map[string]admission.Interface { return p.all }

// Run blocks until ctx is canceled and then stops the goroutines and informers that the plugins have started. It must
// be called once.
func (p *Plugins) Run(ctx context.Context) error {
	<-ctx.Done()
	close(p.stop)
	return nil
}

// file returns a reader of the configuration of the plugin with the name, or nil if it has none.
func (c *Config) file(name string) io.Reader {
	if data := c.Files[name]; len(data) > 0 {
		return bytes.NewReader(data)
	}
	return nil
}

// webhook contains the methods with which startWebhook initializes the mutating and the validating
// webhook plugin.
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

// mutatingWebhook creates the plugin MutatingAdmissionWebhook and starts its informers. name is the plugin's name, by
// which Config.Files contains its configuration.
func (p *Plugins) mutatingWebhook(name string) (admission.Interface, error) {
	w, err := mutatingwebhook.NewMutatingWebhook(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	w.SetExcludedAdmissionResources(admissionregistration.ExemptResources())
	w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return w, p.startWebhook(w)
}

// validatingWebhook creates the plugin ValidatingAdmissionWebhook and starts its informers. name is the plugin's
// name, by which Config.Files contains its configuration.
func (p *Plugins) validatingWebhook(name string) (admission.Interface, error) {
	w, err := validatingwebhook.NewValidatingAdmissionWebhook(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	w.SetExcludedAdmissionResources(admissionregistration.ExemptResources())
	w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return w, p.startWebhook(w)
}

// startWebhook initializes a webhook plugin and starts the informers that it needs.
func (p *Plugins) startWebhook(w webhook) error {
	w.SetServiceResolver(newServices(p.cfg.Informers))
	if p.cfg.Requests != nil {
		w.SetAuthenticationInfoResolverWrapper(instrumented(p.cfg.Requests))
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

// policy contains the methods with which startPolicy initializes the mutating and the validating
// policy plugin.
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

// mutatingPolicy creates the plugin MutatingAdmissionPolicy, starts its informers, and waits until the plugin has
// requested the OpenAPI schemas, unless its feature is disabled. name is the key of its configuration in
// Config.Files.
func (p *Plugins) mutatingPolicy(name string) (admission.Interface, error) {
	x, err := mutatingpolicy.NewPlugin(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	x.SetExcludedAdmissionResources(admissionregistration.ExemptResources())
	x.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	if !utilfeature.DefaultFeatureGate.Enabled(features.MutatingAdmissionPolicy) {
		return x, p.startPolicy(x, p.cfg.Kube)
	}
	s := newSchemas(p.cfg.Kube)
	if err := p.startPolicy(x, s); err != nil {
		return nil, err
	}
	// The goroutine of the plugin that stores the list must be ahead of the first object.
	select {
	case <-s.client.requested:
	case <-p.stop:
	}
	return x, nil
}

// validatingPolicy creates the plugin ValidatingAdmissionPolicy and starts its informers. name is the key of its
// configuration in Config.Files.
func (p *Plugins) validatingPolicy(name string) (admission.Interface, error) {
	x, err := validatingpolicy.NewPlugin(p.cfg.file(name))
	if err != nil {
		return nil, err
	}
	x.SetExcludedAdmissionResources(admissionregistration.ExemptResources())
	return x, p.startPolicy(x, p.cfg.Kube)
}

// startPolicy initializes a policy plugin with the client kube and starts the informers that it needs.
func (p *Plugins) startPolicy(x policy, kube kubernetes.Interface) error {
	x.SetExternalKubeClientSet(kube)
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

// instrumented returns a wrapper of the client configurations of webhooks. Clients with a wrapped configuration count
// their requests to webhooks in by.
func instrumented(by *componentmetrics.Requests) webhookutil.AuthenticationInfoResolverWrapper {
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
