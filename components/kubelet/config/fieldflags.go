package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/internal/base/featuregates"
)

// fieldFlags are the command line flags that correspond to one field of KubeletConfiguration each, by the
// type of their value and by flag name. They override the configuration files.
type fieldFlags struct {
	pairs     map[string]*map[string]string
	texts     map[string]*string
	numbers   map[string]*int64
	switches  map[string]*bool
	durations map[string]*string
	lists     map[string]*[]string
}

// fieldOf maps the name of each flag that overrides a field of KubeletConfiguration to the path of that field.
var fieldOf = map[string]string{
	"eviction-hard": "evictionHard", "eviction-soft": "evictionSoft", "eviction-soft-grace-period": "evictionSoftGracePeriod",
	"eviction-minimum-reclaim": "evictionMinimumReclaim", "kube-reserved": "kubeReserved", "system-reserved": "systemReserved",
	"cpu-manager-policy": "cpuManagerPolicy", "memory-manager-policy": "memoryManagerPolicy", "topology-manager-policy": "topologyManagerPolicy",
	"topology-manager-scope": "topologyManagerScope", "reserved-cpus": "reservedSystemCPUs", "container-log-max-size": "containerLogMaxSize",
	"kube-reserved-cgroup": "kubeReservedCgroup", "system-reserved-cgroup": "systemReservedCgroup",
	"eviction-pressure-transition-period": "evictionPressureTransitionPeriod", "node-status-update-frequency": "nodeStatusUpdateFrequency",
	"minimum-image-ttl-duration": "imageMinimumGCAge", "cpu-cfs-quota-period": "cpuCFSQuotaPeriod",
	"eviction-max-pod-grace-period": "evictionMaxPodGracePeriod", "pod-max-pids": "podPidsLimit", "pods-per-core": "podsPerCore",
	"image-gc-high-threshold": "imageGCHighThresholdPercent", "image-gc-low-threshold": "imageGCLowThresholdPercent",
	"container-log-max-files": "containerLogMaxFiles", "node-status-max-images": "nodeStatusMaxImages", "oom-score-adj": "oomScoreAdj",
	"kube-api-qps": "kubeAPIQPS", "kube-api-burst": "kubeAPIBurst", "fail-swap-on": "failSwapOn", "cpu-cfs-quota": "cpuCFSQuota",
	"serialize-image-pulls": "serializeImagePulls", "protect-kernel-defaults": "protectKernelDefaults",
	"topology-manager-policy-options": "topologyManagerPolicyOptions", "cpu-manager-policy-options": "cpuManagerPolicyOptions",
	"manifest-url": "staticPodURL", "manifest-url-header": "staticPodURLHeader", "http-check-frequency": "httpCheckFrequency",
	"feature-gates": "featureGates", "registry-qps": "registryPullQPS", "registry-burst": "registryBurst", "event-qps": "eventRecordQPS",
	"event-burst": "eventBurst", "image-service-endpoint": "imageServiceEndpoint", "streaming-connection-idle-timeout": "streamingConnectionIdleTimeout",
	"reserved-memory": "reservedMemory", "enforce-node-allocatable": "enforceNodeAllocatable", "allowed-unsafe-sysctls": "allowedUnsafeSysctls",
	"contention-profiling": "enableContentionProfiling", "tls-min-version": "tlsMinVersion", "tls-cipher-suites": "tlsCipherSuites",
	"authentication-token-webhook": "authentication.webhook.enabled", "authentication-token-webhook-cache-ttl": "authentication.webhook.cacheTTL",
	"authorization-webhook-cache-authorized-ttl": "authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-unauthorized-ttl": "authorization.webhook.cacheUnauthorizedTTL",
	"cgroup-driver": "cgroupDriver", "cpu-manager-reconcile-period": "cpuManagerReconcilePeriod", "enable-controller-attach-detach": "enableControllerAttachDetach",
	"enable-server": "enableServer", "fail-cgroupv1": "failCgroupV1", "file-check-frequency": "fileCheckFrequency", "hairpin-mode": "hairpinMode",
	"healthz-bind-address": "healthzBindAddress", "kernel-memcg-notification": "kernelMemcgNotification", "kube-api-content-type": "contentType",
	"kubelet-cgroups": "kubeletCgroups", "make-iptables-util-chains": "makeIPTablesUtilChains", "max-open-files": "maxOpenFiles", "qos-reserved": "qosReserved",
	"read-only-port": "readOnlyPort", "rotate-certificates": "rotateCertificates", "rotate-server-certificates": "serverTLSBootstrap", "runonce": "runOnce",
	"runtime-request-timeout": "runtimeRequestTimeout", "sync-frequency": "syncFrequency", "system-cgroups": "systemCgroups",
	"volume-plugin-dir": "volumePluginDir", "volume-stats-agg-period": "volumeStatsAggPeriod",
	"enable-debugging-handlers": "enableDebuggingHandlers", "cgroups-per-qos": "cgroupsPerQOS", "local-storage-capacity-isolation": "localStorageCapacityIsolation",
}

// register adds the flags to f. Their values are in o after f was parsed.
func (o *fieldFlags) register(f *pflag.FlagSet) {
	o.pairs, o.texts, o.numbers = map[string]*map[string]string{}, map[string]*string{}, map[string]*int64{}
	o.switches, o.durations, o.lists = map[string]*bool{}, map[string]*string{}, map[string]*[]string{}
	for _, name := range slices.Sorted(maps.Keys(fieldOf)) {
		usage := "Overrides the field " + fieldOf[name] + " of KubeletConfiguration."
		switch name {
		case "eviction-hard", "eviction-soft":
			// For example memory.available<100Mi,nodefs.available<10%.
			o.texts[name] = f.String(name, "", usage)
		case "eviction-soft-grace-period", "eviction-minimum-reclaim", "kube-reserved", "system-reserved", "topology-manager-policy-options",
			"cpu-manager-policy-options", "qos-reserved":
			o.pairs[name] = f.StringToString(name, nil, usage)
		case "eviction-pressure-transition-period", "node-status-update-frequency", "minimum-image-ttl-duration", "cpu-cfs-quota-period",
			"http-check-frequency", "streaming-connection-idle-timeout", "authentication-token-webhook-cache-ttl",
			"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl", "cpu-manager-reconcile-period",
			"file-check-frequency", "runtime-request-timeout", "sync-frequency", "volume-stats-agg-period":
			o.durations[name] = f.String(name, "", usage)
		case "eviction-max-pod-grace-period", "pod-max-pids", "pods-per-core", "image-gc-high-threshold", "image-gc-low-threshold",
			"container-log-max-files", "node-status-max-images", "oom-score-adj", "kube-api-qps", "kube-api-burst",
			"registry-qps", "registry-burst", "event-qps", "event-burst", "max-open-files", "read-only-port":
			o.numbers[name] = f.Int64(name, 0, usage)
		case "fail-swap-on", "cpu-cfs-quota", "serialize-image-pulls", "protect-kernel-defaults", "enable-debugging-handlers",
			"cgroups-per-qos", "local-storage-capacity-isolation", "contention-profiling", "authentication-token-webhook",
			"enable-controller-attach-detach", "enable-server", "fail-cgroupv1", "kernel-memcg-notification", "make-iptables-util-chains",
			"rotate-certificates", "rotate-server-certificates", "runonce":
			o.switches[name] = f.Bool(name, false, usage)
		case "enforce-node-allocatable", "allowed-unsafe-sysctls", "tls-cipher-suites":
			o.lists[name] = f.StringSlice(name, nil, usage)
		default:
			o.texts[name] = f.String(name, "", usage)
		}
	}
}

// values returns the values of the flags for which isSet returns true, by the path of their field, in the
// form of a configuration file. It returns an error if a value cannot be parsed.
func (o *fieldFlags) values(isSet func(string) bool) (map[string]any, error) {
	out := map[string]any{}
	for name, field := range fieldOf {
		if !isSet(name) {
			continue
		}
		switch {
		case name == "eviction-hard" || name == "eviction-soft":
			list := map[string]any{}
			for part := range strings.SplitSeq(*o.texts[name], ",") {
				if signal, value, ok := strings.Cut(strings.TrimSpace(part), "<"); ok {
					list[signal] = value
				} else if part != "" {
					list[part] = "" // rejected later with its name
				}
			}
			out[field] = list
		case name == "feature-gates":
			gates, err := featuregates.Parse(*o.texts[name])
			if err != nil {
				return nil, fmt.Errorf("--feature-gates: %w", err)
			}
			out[field] = gates
		case name == "manifest-url-header":
			headers := map[string][]string{}
			for part := range strings.SplitSeq(*o.texts[name], ",") {
				key, value, ok := strings.Cut(part, ":")
				if !ok {
					return nil, fmt.Errorf("--manifest-url-header: %q is not of the form name:value", part)
				}
				headers[key] = append(headers[key], value)
			}
			out[field] = headers
		case name == "reserved-memory":
			list, err := reservedMemory(*o.texts[name])
			if err != nil {
				return nil, fmt.Errorf("--reserved-memory: %w", err)
			}
			out[field] = list
		case o.lists[name] != nil:
			out[field] = *o.lists[name]
		case o.pairs[name] != nil:
			list := map[string]any{}
			for k, v := range *o.pairs[name] {
				list[k] = v
			}
			out[field] = list
		case o.texts[name] != nil:
			out[field] = *o.texts[name]
		case o.durations[name] != nil:
			out[field] = *o.durations[name]
		case o.numbers[name] != nil:
			out[field] = *o.numbers[name]
		case o.switches[name] != nil:
			out[field] = *o.switches[name]
		}
	}
	return out, nil
}

// reservedMemory parses the value of --reserved-memory, such as "0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=2Gi",
// into the field reservedMemory. It returns an error if the format is not valid; it does not check the
// quantities.
func reservedMemory(text string) ([]any, error) {
	var out []any
	for node := range strings.SplitSeq(text, ";") {
		id, rest, ok := strings.Cut(node, ":")
		n, err := strconv.ParseInt(strings.TrimSpace(id), 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("invalid format of %q: want NODE:TYPE=QUANTITY", node)
		}
		limits := map[string]any{}
		for pair := range strings.SplitSeq(rest, ",") {
			kind, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
			if !ok {
				return nil, fmt.Errorf("invalid format of %q: want TYPE=QUANTITY", pair)
			}
			limits[kind] = value
		}
		out = append(out, map[string]any{"numaNode": n, "limits": limits})
	}
	return out, nil
}
