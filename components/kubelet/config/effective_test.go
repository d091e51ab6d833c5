package config

import (
	"reflect"
	"testing"
	"time"

	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// nonDefaultConfig is a configuration whose values all differ from the defaults.
const nonDefaultConfig = `
containerRuntimeEndpoint: unix:///run/other.sock
staticPodPath: /manifests
staticPodURL: http://127.0.0.1/pods
httpCheckFrequency: 7s
podLogsDir: /pod-logs
address: 127.0.0.9
port: 11250
readOnlyPort: 11255
healthzBindAddress: 127.0.0.8
healthzPort: 11248
enableServer: false
registerNode: false
registerWithTaints: [{key: k, value: v, effect: NoExecute}]
providerID: cloud://1
podCIDR: 10.1.2.0/24
clusterDNS: [10.9.0.10]
clusterDomain: example.test
resolvConf: /etc/other.conf
cgroupRoot: /below
kubeletCgroups: /kubelet
systemCgroups: /system
maxPods: 17
podsPerCore: 3
podPidsLimit: 99
containerLogMaxSize: 3Mi
containerLogMaxFiles: 9
containerLogMonitorInterval: 23s
imageGCHighThresholdPercent: 77
imageGCLowThresholdPercent: 66
imageMinimumGCAge: 3m
imageMaximumGCAge: 50h
serializeImagePulls: false
maxParallelImagePulls: 4
nodeStatusUpdateFrequency: 11s
nodeStatusReportFrequency: 13m
nodeLeaseDurationSeconds: 44
nodeStatusMaxImages: 12
seccompDefault: true
cpuCFSQuota: false
cpuCFSQuotaPeriod: 50ms
allowedUnsafeSysctls: [kernel.msg*]
evictionHard: {memory.available: 111Mi}
evictionSoft: {memory.available: 222Mi}
evictionSoftGracePeriod: {memory.available: 30s}
evictionMinimumReclaim: {memory.available: 10Mi}
evictionPressureTransitionPeriod: 6m
evictionMaxPodGracePeriod: 66
localStorageCapacityIsolation: false
enforceNodeAllocatable: [none]
kubeReserved: {cpu: 100m}
systemReserved: {memory: 1Gi}
oomScoreAdj: -500
crashLoopBackOff: {maxContainerRestartPeriod: 33s}
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: restricted
topologyManagerScope: pod
topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}
imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages
preloadedImagesVerificationAllowlist: [r.example/a]
featureGates: {ContextualLogging: false}
registryPullQPS: 6
registryBurst: 12
eventRecordQPS: 51
eventBurst: 102
authentication: {anonymous: {enabled: true}, webhook: {enabled: false, cacheTTL: 3m}}
authorization: {mode: AlwaysAllow, webhook: {cacheAuthorizedTTL: 6m, cacheUnauthorizedTTL: 31s}}
runtimeRequestTimeout: 3m
streamingConnectionIdleTimeout: 5h
enableContentionProfiling: true
failSwapOn: false
failCgroupV1: false
enableDebuggingHandlers: true
enableProfilingHandler: false
enableSystemLogQuery: true
`

// TestFieldsInForce checks that the values of a file are applied to Config, and that Effective
// returns them without the file.
func TestFieldsInForce(t *testing.T) {
	f := &kubeletv1beta1.KubeletConfiguration{}
	if err := yaml.UnmarshalStrict([]byte(nonDefaultConfig), f); err != nil {
		t.Fatal(err)
	}
	cfg := Config{NodeName: "n"}
	if err := cfg.Apply(f); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	cfg.File = nil
	text, err := yaml.Marshal(cfg.Effective())
	if err != nil {
		t.Fatal(err)
	}
	var given, got map[string]any
	if err := yaml.Unmarshal([]byte(nonDefaultConfig), &given); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	var compare func(path string, given, got any)
	compare = func(path string, given, got any) {
		inner, ok := given.(map[string]any)
		if !ok {
			// Durations are printed in full.
			if !reflect.DeepEqual(given, got) && !sameDuration(given, got) {
				t.Errorf("%s: got %v, want %v", path, got, given)
			}
			return
		}
		of, _ := got.(map[string]any)
		for name := range inner {
			compare(path+"."+name, inner[name], of[name])
		}
	}
	compare("", given, got)
}

// sameDuration reports whether both strings are the same duration.
func sameDuration(a, b any) bool {
	x, isText := a.(string)
	y, areTexts := b.(string)
	if !isText || !areTexts {
		return false
	}
	one, err := time.ParseDuration(x)
	if err != nil {
		return false
	}
	other, err := time.ParseDuration(y)
	return err == nil && one == other
}
