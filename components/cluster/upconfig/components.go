package upconfig

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/apiserver/compose"
	"hyperkube/components/controllers"
	"hyperkube/components/etcd"
	kubeletconfig "hyperkube/components/kubelet/config"
	"hyperkube/components/proxy"
	"hyperkube/components/scheduler"
	"hyperkube/internal/base/strictyaml"
	"hyperkube/internal/base/tracing"
	"hyperkube/internal/host/layout"
)

// Components are the settings of the components. Each is nil if the files contain none of the component.
type Components struct {
	Etcd        *etcd.Flags
	APIServer   *compose.Flags
	Controllers *controllers.Flags
	Scheduler   *scheduler.Flags
	Kubelet     *kubeletconfig.Overrides
	Proxy       *proxy.Flags
	// Tracing configures the traces of API server, controllers and scheduler, and those of the kubelet unless its own
	// configuration does.
	Tracing *tracingapi.TracingConfiguration
}

// buildComponents parses and validates the extra arguments and documents of the components, and sets c.Components to
// the result.
func (r *reader) buildComponents(c *Config) {
	cluster, up := r.merged[clusterKind], r.merged[Kind]
	out := &c.Components
	if args := items(cluster, "etcd", "local", "extraArgs"); len(args) > 0 {
		set := newSet()
		out.Etcd = etcd.NewFlags(set)
		r.setArguments("etcd", set, args)
		r.validate(args[0], args, "etcd.local.extraArgs", out.Etcd.Validate)
	}
	if args := items(cluster, "apiServer", "extraArgs"); len(args) > 0 {
		set := newSet()
		out.APIServer = compose.NewFlags(set)
		r.setArguments("kube-apiserver", set, args)
		r.validate(args[0], args, "apiServer.extraArgs", func() error {
			return errors.Join(out.APIServer.Validate(), checkPort(out.APIServer.Address().Port()))
		})
	}
	if args := items(cluster, "controllerManager", "extraArgs"); len(args) > 0 {
		set := newSet()
		out.Controllers = controllers.NewFlags(set)
		r.setArguments("kube-controller-manager", set, args)
		r.validate(args[0], args, "controllerManager.extraArgs", out.Controllers.Validate)
	}
	out.Scheduler = buildComponent(r, "kube-scheduler", schedulerKind, items(cluster, "scheduler", "extraArgs"), scheduler.NewFlags)
	out.Proxy = buildComponent(r, "kube-proxy", proxyKind, items(up, proxyArgs), proxy.NewFlags)
	out.Tracing = r.buildTracing()
	args := items(up, kubeletArgs)
	if len(args) > 0 {
		set := newSet()
		out.Kubelet = kubeletconfig.NewOverrides(set)
		r.setArguments("kubelet", set, args)
	}
	if doc := r.merged[kubeletKind]; doc != nil || len(args) > 0 {
		r.validate(positionOf(doc, args), args, kubeletKind, func() error {
			file, err := c.KubeletConfiguration("", "")
			if err != nil {
				return err
			}
			return out.Kubelet.Validate(file)
		})
	}
}

// buildTracing returns the configuration of traces, or nil if the files contain none or an invalid one.
func (r *reader) buildTracing() *tracingapi.TracingConfiguration {
	doc := r.merged[tracingKind]
	if doc == nil || len(r.errs) > 0 {
		return nil
	}
	cfg, errs := strictyaml.Decode[apiserverv1.TracingConfiguration](doc)
	if len(errs) > 0 { // only if documents were merged to one that is not valid
		r.failDecoding(doc, errs)
		return nil
	}
	r.validate(doc, nil, tracingKind, func() error { return tracing.Validate(&cfg.TracingConfiguration) })
	return &cfg.TracingConfiguration
}

// checkPort returns an error if the port of the API server is that of another component.
func checkPort(port uint16) error {
	owner := map[uint16]string{
		layout.PortEtcdClient: "etcd", layout.PortEtcdPeer: "etcd", layout.PortKubelet: "the kubelet", layout.PortKubeletHealthz: "the kubelet",
		layout.PortProxyHealthz: "the service proxy", layout.PortProxyMetrics: "the service proxy",
		layout.PortControllerManager: "the controller manager", layout.PortScheduler: "the scheduler",
	}[port]
	if owner == "" {
		return nil
	}
	return fmt.Errorf("--secure-port: %d is a port of %s", port, owner)
}

// buildComponent returns the settings of a component that is configured by documents of a kind and by arguments.
// newFlags adds the flags of the component to a set. It returns the zero value if the files contain neither.
func buildComponent[F interface{ Validate() error }](r *reader, component, kind string, args []*strictyaml.Node, newFlags func(set *pflag.FlagSet, document []byte) (F, error)) (out F) {
	doc := r.merged[kind]
	if doc == nil && len(args) == 0 {
		return out
	}
	at := positionOf(doc, args)
	set := newSet()
	flags, err := newFlags(set, jsonOf(doc))
	if err != nil {
		r.fail(at.Position(), "%s: %v", kind, err)
		return out
	}
	r.setArguments(component, set, args)
	r.validate(at, args, kind, flags.Validate)
	return flags
}

// positionOf returns the node at which errors of a component are reported: its document or, if that is nil, its first argument.
func positionOf(doc *strictyaml.Node, args []*strictyaml.Node) *strictyaml.Node {
	if doc == nil {
		return args[0]
	}
	return doc
}

// KubeletConfiguration returns the KubeletConfiguration of the files, over which a file, a directory of drop-in files and the flags
// of the kubelet take precedence. Unless it configures traces, those of the TracingConfiguration are added. It returns nil if all are
// empty.
func (c *Config) KubeletConfiguration(file, dir string) (*kubeletv1beta1.KubeletConfiguration, error) {
	cfg, err := c.Components.Kubelet.Load(jsonOf(c.documents[kubeletKind]), file, dir)
	if err != nil || c.Components.Tracing == nil {
		return cfg, err
	}
	if cfg == nil {
		cfg = &kubeletv1beta1.KubeletConfiguration{}
	}
	if cfg.Tracing == nil {
		cfg.Tracing = c.Components.Tracing
	}
	return cfg, nil
}

// jsonOf returns a document as JSON; nil if doc is nil.
func jsonOf(doc *strictyaml.Node) []byte {
	if doc == nil {
		return nil
	}
	return doc.JSON()
}

// items returns the items of the list at a path, or nil if there is no such list.
func items(doc *strictyaml.Node, path ...string) []*strictyaml.Node {
	field, ok := lookup(doc, path...)
	if !ok {
		return nil
	}
	return field.Value.Items
}

// newSet returns a set for the flags of a component, which prints no warnings about deprecated flags.
func newSet() *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.SetOutput(io.Discard)
	return set
}

// setArguments sets flags of a component. It adds errors for flags that do not exist, flags that `up` determines,
// relative paths, and invalid values.
func (r *reader) setArguments(component string, set *pflag.FlagSet, args []*strictyaml.Node) {
	for _, arg := range args {
		name, value := arg.Text("name"), arg.Text("value")
		switch reason := ownedReason(component, name); {
		case reason != "":
			r.fail(arg.Position(), "%s cannot be set to %q for %s: %s", name, value, component, reason)
		case set.Lookup(name) == nil:
			r.fail(arg.Position(), "%q is not a flag of %s: write the name without dashes; `hyperkube %s --help` lists all flags", name, component, component)
		case isPath(name) && value != "" && value != "-" && !filepath.IsAbs(value):
			r.fail(arg.Position(), "%s: %s: %q is not an absolute path: the cluster runs in another working directory", component, name, value)
		default:
			if err := set.Set(name, value); err != nil {
				r.fail(arg.Position(), "%s: %v", component, err)
			}
		}
	}
}

// isPath reports whether the values of a flag are paths, which it concludes from the name of the flag.
func isPath(flag string) bool {
	return flag != "runtime-config" && slices.ContainsFunc([]string{"-file", "-path", "-dir", "-config"}, func(suffix string) bool { return strings.HasSuffix(flag, suffix) })
}

// validate adds the errors of a component, unless there already are errors, which are probably the cause. The position is that of the
// argument that an error mentions, otherwise at.
func (r *reader) validate(at *strictyaml.Node, args []*strictyaml.Node, what string, validate func() error) {
	if len(r.errs) > 0 {
		return
	}
	for _, err := range flatten(validate()) {
		position := at
		if i := slices.IndexFunc(args, func(arg *strictyaml.Node) bool { return mentions(err.Error(), arg) }); i >= 0 {
			position = args[i]
		}
		r.errs = append(r.errs, fmt.Errorf("%s: %s: %w", position.Position(), what, err))
	}
}

// mentions reports whether an error message contains the name of an argument, or its value if that is a path or URL.
func mentions(text string, arg *strictyaml.Node) bool {
	value := arg.Text("value")
	return strings.Contains(text, arg.Text("name")) || strings.Contains(value, "/") && strings.Contains(text, value)
}

// flatten returns the errors that errors.Join has joined.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // wrapped errors are one message
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}
