package compose

import (
	"context"
	"errors"
	"fmt"
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
	"hyperkube/internal/accepted"
)

// moreOptions are flags that few set.
type moreOptions struct {
	overrides               []string
	compaction              time.Duration
	reconciler              string
	notReady, unreachable   int64
	nodePort                int
	shareAddress, sharePort bool
	contention              bool
	runtimeConfig           cliflag.ConfigurationMap
}

func (o *moreOptions) flags(f *pflag.FlagSet) {
	o.runtimeConfig = cliflag.ConfigurationMap{}
	f.StringSliceVar(&o.overrides, "etcd-servers-overrides", nil, "Other etcds for single resources, as group/resource#servers, with the servers' URLs separated by semicolons.")
	f.DurationVar(&o.compaction, "etcd-compaction-interval", 5*time.Minute, "How often etcd is told to forget what was; 0: never.")
	f.StringVar(&o.reconciler, "endpoint-reconciler-type", "lease", "Who the endpoints of the Service kubernetes are: all servers that hold a lease in etcd (lease), or none.")
	f.Int64Var(&o.notReady, "default-not-ready-toleration-seconds", 300, "For how long pods that do not say stay on a node that is not ready.")
	f.Int64Var(&o.unreachable, "default-unreachable-toleration-seconds", 300, "For how long pods that do not say stay on a node that is not reachable.")
	f.IntVar(&o.nodePort, "kubernetes-service-node-port", 0, "Node port of the Service kubernetes; 0: it has none.")
	f.BoolVar(&o.shareAddress, "permit-address-sharing", false, "Listen with SO_REUSEADDR.")
	f.BoolVar(&o.sharePort, "permit-port-sharing", false, "Listen with SO_REUSEPORT.")
	f.BoolVar(&o.contention, "contention-profiling", false, "Profile what goroutines wait for.")
	f.Var(&o.runtimeConfig, "runtime-config", "Versions of APIs to leave out, as group/version=false or group/version/resource=false, with v1 for the core's. Those that are not served cannot be asked for.")
	accepted.Add(f, slices.Concat(accepted.Logging(), accepted.Metrics(), accepted.Versions(), notHere)...)
}

// notHere are upstream's flags for what is always so or does not exist.
var notHere = []accepted.Flag{
	{Name: "admission-control", Why: "plugins are chosen by --enable-admission-plugins and --disable-admission-plugins", Only: []string{""}},
	{Name: "watch-cache", Why: "everything is served from the watch cache", Only: []string{"true"}, Bool: true},
	{Name: "default-watch-cache-size", Why: "the watch cache sizes itself"},
	{Name: "watch-cache-sizes", Why: "the watch cache sizes itself"},
	{Name: "storage-backend", Why: "the store is etcd", Only: []string{"", "etcd3"}},
	{Name: "storage-media-type", Why: "built-in kinds are stored as protobuf", Only: []string{"application/vnd.kubernetes.protobuf"}},
	{Name: "storage-initialization-timeout", Why: "readiness tells whether the store is reached"},
	{Name: "etcd-count-metric-poll-period", Why: "objects are counted when metrics are read"},
	{Name: "etcd-db-metric-poll-interval", Why: "etcd serves the metric of its size itself"},
	{Name: "etcd-healthcheck-timeout", Why: "etcd is given two seconds"},
	{Name: "etcd-readycheck-timeout", Why: "etcd is given two seconds"},
	{Name: "lease-reuse-duration-seconds", Why: "keys share a lease for a minute"},
	{Name: "delete-collection-workers", Why: "objects of a collection are deleted together"},
	{Name: "enable-garbage-collector", Why: "finalizers of the garbage collector are always minded", Only: []string{"true"}, Bool: true},
	{Name: "tls-curve-preferences", Why: "curves are Go's choice", Only: []string{""}},
	{Name: "debug-socket-path", Why: "profiles are served at /debug/pprof", Only: []string{""}},
	{Name: "enable-logs-handler", Why: "logs are not served", Bool: true},
	{Name: "egress-selector-config-file", Why: "there is no egress proxy", Only: []string{""}},
	{Name: "tracing-config-file", Why: "there is no tracing", Only: []string{""}},
	{Name: "peer-ca-file", Why: "requests are not passed on to servers of other versions", Only: []string{""}},
	{Name: "peer-advertise-ip", Why: "requests are not passed on to servers of other versions", Only: []string{""}},
	{Name: "peer-advertise-port", Why: "requests are not passed on to servers of other versions", Only: []string{""}},
	{Name: "aggregator-reject-forwarding-redirect", Why: "redirects of other servers are never followed", Only: []string{"true"}, Bool: true},
	{Name: "apiserver-count", Why: "servers are known by their leases"},
	{Name: "kubelet-timeout", Why: "what is asked of kubelets may take as long as the request"},
	{Name: "kubelet-port", Why: "nodes tell the port of their kubelet"},
	{Name: "kubelet-read-only-port", Why: "kubelets are reached by HTTPS"},
	{Name: "service-account-signing-endpoint", Why: "tokens are signed with the key of --service-account-signing-key-file", Only: []string{""}},
	{Name: "shutdown-send-retry-after", Why: "requests are answered until the listener is closed", Bool: true},
	{Name: "shutdown-watch-termination-grace-period", Why: "watches end at once"},
	{Name: "runtime-config-emulation-forward-compatible", Why: "it is of one version alone", Bool: true},
	{Name: "coordinated-leadership-lease-duration", Why: "leaders are not coordinated"},
	{Name: "coordinated-leadership-renew-deadline", Why: "leaders are not coordinated"},
	{Name: "coordinated-leadership-retry-period", Why: "leaders are not coordinated"},
}

// apply puts what the flags say into cfg.
func (o *moreOptions) apply(cfg *Config) error {
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
		return fmt.Errorf("--endpoint-reconciler-type: unknown type %q, known are lease and none", o.reconciler)
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
	var err error
	cfg.Without, err = without(o.runtimeConfig)
	return err
}

// without reads --runtime-config. What is served is what is stable, so asking
// for more than that is an error, and for all of it none.
func without(asked map[string]string) (func(schema.GroupVersionResource) bool, error) {
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
				return nil, fmt.Errorf("--runtime-config: api/%s=false is not supported: leave out versions by their names", key)
			}
		case "beta", "alpha", "legacy":
			// None of these is served, whatever is asked for.
		default:
			if !on {
				off[key] = true
			}
		}
	}
	if off["v1"] {
		return nil, errors.New("--runtime-config: v1=false is not supported: nothing works without the core")
	}
	if len(off) == 0 {
		return nil, nil
	}
	return func(gvr schema.GroupVersionResource) bool {
		gv := gvr.GroupVersion().String()
		return off[gv] || off[gv+"/"+gvr.Resource]
	}, nil
}

// dialApart connects with the etcds of single resources.
func (o *options) dialApart() (map[schema.GroupResource]*clientv3.Client, error) {
	apart := map[schema.GroupResource]*clientv3.Client{}
	made := map[string]*clientv3.Client{}
	for _, text := range o.more.overrides {
		what, servers, ok := strings.Cut(text, "#")
		group, resource, both := strings.Cut(what, "/")
		if !ok || !both || resource == "" || servers == "" || strings.ContainsAny(resource+servers, "#") || strings.Contains(resource, "/") {
			closeApart(apart)
			return nil, errors.New("--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated")
		}
		if made[servers] == nil {
			c, err := o.dialTo(strings.Split(servers, ";"))
			if err != nil {
				closeApart(apart)
				return nil, err
			}
			made[servers] = c
		}
		apart[schema.GroupResource{Group: group, Resource: resource}] = made[servers]
	}
	return apart, nil
}

// closeApart closes what dialApart returned.
func closeApart(apart map[schema.GroupResource]*clientv3.Client) {
	for _, c := range apart {
		_ = c.Close() // once more does no harm
	}
}

// listen for API requests.
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
