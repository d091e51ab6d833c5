package compose

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cliflag "k8s.io/component-base/cli/flag"

	"hyperkube/components/apiserver/admission"
	"hyperkube/internal/api/catalog"
	"hyperkube/internal/base/compatflags"
	"hyperkube/internal/base/tracing"
)

// moreOptions contains the values of those flags of kube-apiserver that are rarely used.
type moreOptions struct {
	overrides               []string
	compaction              time.Duration
	reconciler              string
	notReady, unreachable   int64
	nodePort                int
	shareAddress, sharePort bool
	contention              bool
	runtimeConfig           cliflag.ConfigurationMap
	tracingFile             string
}

// flags adds the flags of moreOptions to f, and those that are accepted but have no effect.
func (o *moreOptions) flags(f *pflag.FlagSet) {
	o.runtimeConfig = cliflag.ConfigurationMap{}
	f.StringSliceVar(&o.overrides, "etcd-servers-overrides", nil, "Per-resource etcd servers overrides, comma separated. The individual override format: group/resource#servers, where servers are URLs, semicolon separated.")
	f.DurationVar(&o.compaction, "etcd-compaction-interval", 5*time.Minute, "The interval of compaction requests. If 0, the compaction request from apiserver is disabled.")
	f.StringVar(&o.reconciler, "endpoint-reconciler-type", "lease", "Use an endpoint reconciler (lease, none) for the Service kubernetes. With lease, its endpoints are all API servers that hold a lease in etcd.")
	f.Int64Var(&o.notReady, "default-not-ready-toleration-seconds", 300, "The tolerationSeconds of the toleration for notReady:NoExecute that is added by default to every pod that does not already have such a toleration.")
	f.Int64Var(&o.unreachable, "default-unreachable-toleration-seconds", 300, "The tolerationSeconds of the toleration for unreachable:NoExecute that is added by default to every pod that does not already have such a toleration.")
	f.IntVar(&o.nodePort, "kubernetes-service-node-port", 0, "If non-zero, the Service kubernetes is of type NodePort, with this value as the port. If zero, it is of type ClusterIP.")
	f.BoolVar(&o.shareAddress, "permit-address-sharing", false, "If true, SO_REUSEADDR is used when binding the port.")
	f.BoolVar(&o.sharePort, "permit-port-sharing", false, "If true, SO_REUSEPORT is used when binding the port, which allows more than one instance to bind on the same address and port.")
	tracing.AddFileFlag(f, &o.tracingFile)
	f.BoolVar(&o.contention, "contention-profiling", false, "Enable block profiling, if profiling is enabled.")
	f.Var(&o.runtimeConfig, "runtime-config", "A set of key=value pairs that disable built-in APIs: group/version=false or group/version/resource=false, with v1=... for the core group. This server has stable versions of APIs only, so alpha and beta versions cannot be enabled.")
	compatflags.Add(f, slices.Concat(compatflags.Logging(), compatflags.Metrics(), compatflags.Versions(), acceptedFlags)...)
}

// acceptedFlags lists upstream's flags that this server accepts so that existing configurations work, although their
// behavior is fixed or does not exist here. Why is the explanation for users. Only lists the values that are
// accepted; if it is nil, all are.
var acceptedFlags = []compatflags.Flag{
	{Name: "admission-control", Why: "plugins are selected by --enable-admission-plugins and --disable-admission-plugins", Only: []string{""}},
	{Name: "watch-cache", Why: "everything is served from the watch cache", Only: []string{"true"}, Bool: true},
	{Name: "default-watch-cache-size", Why: "the watch cache sizes itself"},
	{Name: "watch-cache-sizes", Why: "the watch cache sizes itself"},
	{Name: "storage-backend", Why: "the store is etcd", Only: []string{"", "etcd3"}},
	{Name: "storage-media-type", Why: "built-in kinds are stored as protobuf", Only: []string{"application/vnd.kubernetes.protobuf"}},
	{Name: "storage-initialization-timeout", Why: "the readiness check reports whether the store is available"},
	{Name: "etcd-count-metric-poll-period", Why: "objects are counted when metrics are read"},
	{Name: "etcd-db-metric-poll-interval", Why: "the size is queried from etcd when metrics are read"},
	{Name: "etcd-healthcheck-timeout", Why: "the timeout is two seconds"},
	{Name: "etcd-readycheck-timeout", Why: "the timeout is two seconds"},
	{Name: "lease-reuse-duration-seconds", Why: "keys share a lease for a minute"},
	{Name: "delete-collection-workers", Why: "objects of a collection are deleted concurrently"},
	{Name: "enable-garbage-collector", Why: "finalizers of the garbage collector are always respected", Only: []string{"true"}, Bool: true},
	{Name: "tls-curve-preferences", Why: "the curves are Go's defaults", Only: []string{""}},
	{Name: "debug-socket-path", Why: "profiles are served at /debug/pprof", Only: []string{""}},
	{Name: "enable-logs-handler", Why: "logs are not served", Bool: true},
	{Name: "egress-selector-config-file", Why: "there is no egress proxy", Only: []string{""}},
	{Name: "peer-ca-file", Why: "requests are not proxied to servers of other versions", Only: []string{""}},
	{Name: "peer-advertise-ip", Why: "requests are not proxied to servers of other versions", Only: []string{""}},
	{Name: "peer-advertise-port", Why: "requests are not proxied to servers of other versions", Only: []string{""}},
	{Name: "aggregator-reject-forwarding-redirect", Why: "redirects of other servers are never followed", Only: []string{"true"}, Bool: true},
	{Name: "apiserver-count", Why: "servers are counted by their leases"},
	{Name: "kubelet-timeout", Why: "requests to kubelets have the timeout of the client's request"},
	{Name: "kubelet-port", Why: "nodes report the port of their kubelet"},
	{Name: "kubelet-read-only-port", Why: "kubelets are reached over HTTPS"},
	{Name: "service-account-signing-endpoint", Why: "tokens are signed with the key of --service-account-signing-key-file", Only: []string{""}},
	{Name: "shutdown-send-retry-after", Why: "requests are answered until the listener is closed", Bool: true},
	{Name: "shutdown-watch-termination-grace-period", Why: "watches are closed immediately"},
	{Name: "runtime-config-emulation-forward-compatible", Why: "only one version is supported", Bool: true},
	{Name: "coordinated-leadership-lease-duration", Why: "coordinated leader election is not supported"},
	{Name: "coordinated-leadership-renew-deadline", Why: "coordinated leader election is not supported"},
	{Name: "coordinated-leadership-retry-period", Why: "coordinated leader election is not supported"},
}

// apply validates the flags and sets the corresponding fields of cfg. With --contention-profiling it also enables
// block profiling in this process.
func (o *moreOptions) apply(cfg *Config) error {
	var err error
	if cfg.Tracing, err = tracing.ReadFile(o.tracingFile); err != nil {
		return err
	}
	cfg.CompactionInterval = o.compaction
	if o.compaction == 0 {
		cfg.CompactionInterval = -1
	}
	switch o.reconciler {
	case "lease":
	case "none":
		cfg.NoEndpoints = true
	case "master-count":
		return errors.New("--endpoint-reconciler-type: master-count is not supported, use lease")
	default:
		return fmt.Errorf("--endpoint-reconciler-type: unknown type %q, supported types are lease and none", o.reconciler)
	}
	if o.notReady < 0 || o.unreachable < 0 {
		return errors.New("--default-not-ready-toleration-seconds and --default-unreachable-toleration-seconds can not be negative")
	}
	cfg.TolerationSeconds = &admission.TolerationSeconds{NotReady: o.notReady, Unreachable: o.unreachable}
	if o.nodePort < 0 || o.nodePort > 65535 {
		return fmt.Errorf("--kubernetes-service-node-port %v must be between 0 and 65535, inclusive. If 0, the Kubernetes master service will be of type ClusterIP", o.nodePort)
	}
	cfg.ServiceNodePort = int32(o.nodePort)
	if o.contention {
		runtime.SetBlockProfileRate(1)
	}
	cfg.Disabled, err = disabledResources(o.runtimeConfig)
	return err
}

// disabledResources parses the entries of --runtime-config (asked) and returns a function that reports whether a
// resource is disabled, or nil if none is. It returns an error for an entry that enables an API that this server does
// not have, such as a beta version, or that disables all APIs or the core group.
func disabledResources(asked map[string]string) (func(schema.GroupVersionResource) bool, error) {
	served := map[string]bool{}
	for _, r := range catalog.Resources() {
		gv := r.GroupVersion().String()
		served[gv], served[gv+"/"+r.Plural] = true, true
	}
	off := map[string]bool{} // "group/version" or "group/version/resource"
	for key, text := range asked {
		on := true
		if text != "" {
			var err error
			if on, err = strconv.ParseBool(text); err != nil {
				return nil, fmt.Errorf("--runtime-config: invalid value of %s: %w", key, err)
			}
		}
		switch key = strings.TrimPrefix(strings.Trim(key, "/"), "api/"); key {
		case "all", "ga":
			if !on {
				return nil, fmt.Errorf("--runtime-config: api/%s=false is not supported: disable versions by name", key)
			}
		case "beta", "alpha", "legacy":
			if on {
				return nil, fmt.Errorf("--runtime-config: api/%s=true is not supported: this server has stable versions of APIs only", key)
			}
		default:
			if on && !served[key] {
				return nil, fmt.Errorf("--runtime-config: %s cannot be enabled: this server does not have it (it has stable versions of APIs only)", key)
			}
			off[key] = off[key] || !on
		}
	}
	if off["v1"] {
		return nil, errors.New("--runtime-config: v1=false is not supported: the core group is required")
	}
	if !slices.Contains(slices.Collect(maps.Values(off)), true) {
		return nil, nil
	}
	return func(gvr schema.GroupVersionResource) bool {
		gv := gvr.GroupVersion().String()
		return off[gv] || off[gv+"/"+gvr.Resource]
	}, nil
}

// dialOverrides returns clients of the etcds of --etcd-servers-overrides, which store individual resources. Resources
// with the same servers share a client. It returns an error if an entry of the flag is invalid.
func (o *options) dialOverrides() (map[schema.GroupResource]*clientv3.Client, error) {
	apart := map[schema.GroupResource]*clientv3.Client{}
	made := map[string]*clientv3.Client{}
	for _, text := range o.more.overrides {
		what, servers, ok := strings.Cut(text, "#")
		group, resource, both := strings.Cut(what, "/")
		if !ok || !both || resource == "" || servers == "" || strings.ContainsAny(resource+servers, "#") || strings.Contains(resource, "/") {
			closeOverrides(apart)
			return nil, errors.New("--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated")
		}
		if made[servers] == nil {
			c, err := o.dialTo(strings.Split(servers, ";"))
			if err != nil {
				closeOverrides(apart)
				return nil, err
			}
			made[servers] = c
		}
		apart[schema.GroupResource{Group: group, Resource: resource}] = made[servers]
	}
	return apart, nil
}

// closeOverrides closes the clients that dialOverrides has returned.
func closeOverrides(apart map[schema.GroupResource]*clientv3.Client) {
	for _, c := range apart {
		_ = c.Close() // a second close is harmless
	}
}

// listen opens the TCP listener for API requests at addr, with the socket options that the flags
// select.
func (o *moreOptions) listen(ctx context.Context, addr string) (net.Listener, error) {
	cfg := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var errs []error
		err := conn.Control(func(fd uintptr) {
			if o.shareAddress {
				errs = append(errs, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			}
			if o.sharePort {
				errs = append(errs, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
			}
		})
		return errors.Join(append(errs, err)...)
	}}
	l, err := cfg.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening for API requests: %w", err)
	}
	return l, nil
}
