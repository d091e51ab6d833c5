package kubelet

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// fieldFlags are the flags that are nothing but a field of KubeletConfiguration
// and go before what the files say, by the field's path.
type fieldFlags struct {
	pairs     map[string]*map[string]string
	texts     map[string]*string
	numbers   map[string]*int64
	switches  map[string]*bool
	durations map[string]*string
}

// fieldOf tells which field a flag is.
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
	"enable-debugging-handlers": "enableDebuggingHandlers", "cgroups-per-qos": "cgroupsPerQOS", "local-storage-capacity-isolation": "localStorageCapacityIsolation",
}

// register adds the flags.
func (o *fieldFlags) register(f *pflag.FlagSet) {
	o.pairs, o.texts, o.numbers = map[string]*map[string]string{}, map[string]*string{}, map[string]*int64{}
	o.switches, o.durations = map[string]*bool{}, map[string]*string{}
	for _, name := range slices.Sorted(maps.Keys(fieldOf)) {
		usage := "As " + fieldOf[name] + " of KubeletConfiguration."
		switch name {
		case "eviction-hard", "eviction-soft":
			// As in memory.available<100Mi,nodefs.available<10%.
			o.texts[name] = f.String(name, "", usage)
		case "eviction-soft-grace-period", "eviction-minimum-reclaim", "kube-reserved", "system-reserved":
			o.pairs[name] = f.StringToString(name, nil, usage)
		case "eviction-pressure-transition-period", "node-status-update-frequency", "minimum-image-ttl-duration", "cpu-cfs-quota-period":
			o.durations[name] = f.String(name, "", usage)
		case "eviction-max-pod-grace-period", "pod-max-pids", "pods-per-core", "image-gc-high-threshold", "image-gc-low-threshold",
			"container-log-max-files", "node-status-max-images", "oom-score-adj", "kube-api-qps", "kube-api-burst":
			o.numbers[name] = f.Int64(name, 0, usage)
		case "fail-swap-on", "cpu-cfs-quota", "serialize-image-pulls", "protect-kernel-defaults", "enable-debugging-handlers",
			"cgroups-per-qos", "local-storage-capacity-isolation":
			o.switches[name] = f.Bool(name, false, usage)
		default:
			o.texts[name] = f.String(name, "", usage)
		}
	}
}

// over is what the flags that were given say, as a file would.
func (o *options) over(given func(string) bool) map[string]any {
	out := map[string]any{}
	for name, field := range fieldOf {
		if !given(name) {
			continue
		}
		switch {
		case name == "eviction-hard" || name == "eviction-soft":
			list := map[string]any{}
			for _, part := range strings.Split(*o.fields.texts[name], ",") {
				if signal, value, ok := strings.Cut(strings.TrimSpace(part), "<"); ok {
					list[signal] = value
				} else if part != "" {
					list[part] = "" // is refused with its name
				}
			}
			out[field] = list
		case o.fields.pairs[name] != nil:
			list := map[string]any{}
			for k, v := range *o.fields.pairs[name] {
				list[k] = v
			}
			out[field] = list
		case o.fields.texts[name] != nil:
			out[field] = *o.fields.texts[name]
		case o.fields.durations[name] != nil:
			out[field] = *o.fields.durations[name]
		case o.fields.numbers[name] != nil:
			out[field] = *o.fields.numbers[name]
		case o.fields.switches[name] != nil:
			out[field] = *o.fields.switches[name]
		}
	}
	return out
}
