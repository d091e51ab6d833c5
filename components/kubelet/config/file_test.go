package config

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/pod/dnsconf"
)

const fileHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// newFlags returns registered flags and the set in which they are registered.
func newFlags() (*Flags, *pflag.FlagSet) {
	flags, set := &Flags{}, pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	set.SetOutput(io.Discard)
	flags.Register(set)
	return flags, set
}

func TestLoadFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := write("base.yaml", fileHead+"maxPods: 10\nclusterDNS: [10.0.0.1, 10.0.0.2]\nevictionHard:\n  memory.available: 1Gi\n  nodefs.available: 5%\n")
	write("d/20-b.conf", fileHead+"maxPods: 30\n")
	write("d/10-a.conf", fileHead+"maxPods: 20\nclusterDNS: [10.0.0.9]\nevictionHard:\n  memory.available: 2Gi\n")
	write("d/note.txt", "not of interest")
	got, err := LoadFiles(base, filepath.Join(dir, "d"), map[string]any{"podsPerCore": 7})
	if err != nil {
		t.Fatal(err)
	}
	if got.MaxPods != 30 || len(got.ClusterDNS) != 1 || got.PodsPerCore != 7 ||
		got.EvictionHard["memory.available"] != "2Gi" || got.EvictionHard["nodefs.available"] != "5%" {
		t.Errorf("merged: %+v", got)
	}
	if _, err := LoadFiles(base, filepath.Join(dir, "typo"), nil); err == nil {
		t.Error("a missing directory is not an error")
	}
	// A directory sorts by its own name.
	write("order/1/z.conf", fileHead+"maxPods: 1\n")
	write("order/1.conf", fileHead+"maxPods: 2\n")
	if got, err := LoadFiles("", filepath.Join(dir, "order"), nil); err != nil || got.MaxPods != 2 {
		t.Errorf("directories: %v, %v", got, err)
	}
	if none, err := LoadFiles("", "", nil); none != nil || err != nil {
		t.Errorf("empty directory: %v, %v", none, err)
	}
	write("d/30-c.conf", fileHead+"maxPodz: 1\n")
	if _, err := LoadFiles(base, filepath.Join(dir, "d"), nil); err == nil || !strings.Contains(err.Error(), `unknown field "maxPodz"`) {
		t.Errorf("an unknown field: %v", err)
	}
}

func TestFlagsGoFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k.yaml")
	if err := os.WriteFile(path, []byte(fileHead+"maxPods: 10\nevictionHard: {memory.available: 1Gi, pid.available: 5%}\nimageMinimumGCAge: 1m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags, parsed := newFlags()
	if err := parsed.Parse([]string{"--config", path, "--max-pods=20", "--eviction-hard=memory.available<2Gi", "--kube-reserved=cpu=100m,memory=1Gi", "--hostname-override=n"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Config(parsed.Changed)
	if err != nil {
		t.Fatal(err)
	}
	// The command reads the client's rate limits before the configuration is complete.
	if early := cfg.Effective(); *early.OOMScoreAdj != defaultOOMScore || *early.KubeAPIQPS != 50 {
		t.Errorf("before defaulting: %+v", early)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	f := cfg.Effective()
	if f.MaxPods != 20 || len(f.EvictionHard) != 1 || f.EvictionHard["memory.available"] != "2Gi" || f.KubeReserved["cpu"] != "100m" ||
		f.ImageMinimumGCAge.Duration != time.Minute || f.CPUManagerPolicy != "none" || *f.EventRecordQPS != 50 || f.ClusterDomain != "" {
		t.Errorf("after defaulting: %+v", f)
	}
}

func TestEffectiveText(t *testing.T) {
	for _, given := range []string{"/run/cri.sock", "unix:///run/cri.sock"} {
		if got := (&Config{Runtime: Runtime{Endpoint: given}}).Effective().ContainerRuntimeEndpoint; got != "unix:///run/cri.sock" {
			t.Errorf("runtime endpoint %s is reported as %s", given, got)
		}
	}
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\neventBurst: 101\n" +
		"staticPodURL: http://127.0.0.1/\nstaticPodURLHeader: {Authorization: [secret]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	flags, parsed := newFlags()
	if err := parsed.Parse([]string{"--config", path, "--hostname-override=n"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Config(parsed.Changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	got, err := cfg.EffectiveText()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kind: KubeletConfiguration\n", "eventBurst: 101\n", "Authorization:\n  - <masked>\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	if strings.Contains(got, "secret]") || cfg.StaticPods.Header.Get("Authorization") != "secret" {
		t.Errorf("masked: %s, sent: %v", got, cfg.StaticPods.Header)
	}
}

func TestRefusedFiles(t *testing.T) {
	for text, want := range map[string]string{
		"evictionSoft: {memory.available: 1Gi}":                           "grace period must be specified",
		"enforceNodeAllocatable: [pods, none]":                            "none cannot be combined",
		"enforceNodeAllocatable: [kube-reserved]":                         "requires kubeReservedCgroup",
		"enforceNodeAllocatable: [everything]":                            "unsupported",
		"kubeReserved: {cpu: lots}":                                       "kubeReserved cpu",
		"kubeReserved: {gpu: '1'}":                                        "reservation is not supported",
		"serializeImagePulls: true\nmaxParallelImagePulls: 3":             "unless serializeImagePulls is false",
		"crashLoopBackOff: {maxContainerRestartPeriod: 10m}":              "maxContainerRestartPeriod",
		"memorySwap: {swapBehavior: Some}":                                "want NoSwap or LimitedSwap",
		"tlsMinVersion: VersionTLS10":                                     "want VersionTLS12",
		"tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA]":                     "is unknown or insecure",
		"readOnlyPort: 70000":                                             "readOnlyPort (--read-only-port) 70000 must be between 0 and 65535, inclusive",
		"containerLogMaxFiles: 1":                                         "containerLogMaxFiles must be greater than 1",
		"imageGCHighThresholdPercent: 10\nimageGCLowThresholdPercent: 50": "imageGCHighThresholdPercent",
		"nodeStatusMaxImages: -2":                                         "nodeStatusMaxImages",
		"featureGates: {NoSuch: true}":                                    "unrecognized feature gate: NoSuch",
		"cpuManagerPolicy: static\nfeatureGates: {CPUManagerPolicyBetaOptions: false}\ncpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}": "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided",
		"featureGates: {ImageVolume: false}":                                           "feature is locked to true",
		"shutdownGracePeriodCriticalPods: 10s":                                         "must be <= shutdownGracePeriod",
		"shutdownGracePeriod: 10s\nfeatureGates: {GracefulNodeShutdown: false}":        "requires the feature gate",
		"memoryManagerPolicy: Some":                                                    "want None or Static",
		"reservedMemory: [{numaNode: 0, limits: {cpu: '1'}}]":                          "is not allowed",
		"reservedMemory: [{numaNode: 0, limits: {memory: '0'}}]":                       "must be positive",
		"topologyManagerPolicy: some":                                                  "want none, best-effort",
		"topologyManagerPolicyOptions: {some: 'true'}":                                 "is not supported",
		"staticPodURL: ftp://x/y":                                                      "want http or https",
		"registryPullQPS: -1":                                                          "must not be a negative number",
		"imageMaximumGCAge: 1m":                                                        "must be greater than imageMinimumGCAge",
		"cpuCFSQuotaPeriod: 20ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}":      "20ms requires feature gate CustomCPUCFSQuotaPeriod",
		"cpuCFSQuotaPeriod: 2s":                                                        "between 1ms and 1sec",
		"memoryThrottlingFactor: 1.5":                                                  "must be greater than 0 and less than or equal to 1.0",
		"memoryThrottlingFactor: 0.8\nfeatureGates: {MemoryQoS: false}":                "must not be set when MemoryQoS feature gate is disabled",
		"memoryReservationPolicy: TieredReservation\nfeatureGates: {MemoryQoS: false}": "requires MemoryQoS feature gate to be enabled",
		"memoryReservationPolicy: Some":                                                "Valid options are",
		"defaultPodSysctls: {vm.swappiness: '1'}":                                      "is not namespaced",
		"tracing: {samplingRatePerMillion: -1}":                                        "sampling rate must be positive",
		"runOnce: true":                                                                "Runonce mode has been deprecated and should not be set",
		"logging: {format: xml}":                                                       "want text or json",
		"enforceNodeAllocatable: [system-reserved-compressible]":                       "requires systemReservedCgroup",
		"evictionMinimumReclaim: {memory.used: 1Gi}":                                   "unsupported signal",
		"healthzPort: 70000":                                                           "healthzPort (--healthz-port) 70000 must be between 1 and 65535, inclusive",
		"port: -1":                                                                     "port (--port) -1 must be between 1 and 65535, inclusive",
		"iptablesDropBit: 32":                                                          "iptablesDropBit (--iptables-drop-bit) 32 must be between 0 and 31, inclusive",
		"imageGCLowThresholdPercent: -1":                                               "imageGCLowThresholdPercent (--image-gc-low-threshold) -1 must be between 0 and 100, inclusive",
		"imageGCHighThresholdPercent: 80":                                              "imageGCLowThresholdPercent (--image-gc-low-threshold) 80 must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) 80",
		"kubeAPIQPS: -1":                                                               "kubeAPIQPS (--kube-api-qps) -1 must not be a negative number",
		"maxOpenFiles: -1":                                                             "maxOpenFiles (--max-open-files) -1 must not be a negative number",
		"nodeLeaseDurationSeconds: -1":                                                 "nodeLeaseDurationSeconds must be greater than 0",
		"imageMinimumGCAge: -1s":                                                       "imageMinimumGCAge -1s must not be negative",
		"oomScoreAdj: 2000":                                                            "oomScoreAdj (--oom-score-adj) 2000 must be between -1000 and 1000, inclusive",
		"defaultPodSysctls: {Net.x: '1'}":                                              `"Net.x" is not a valid sysctl name for defaultPodSysctls`,
		"defaultPodSysctls: {net.a: '1', net/a: '2'}":                                  `duplicate sysctl "net.a" found in defaultPodSysctls`,
		"registerWithTaints: [{key: a/b/c, effect: NoSchedule}]":                       "invalid taint: a/b/c=:NoSchedule",
		"registerWithTaints: [{key: a, effect: Never}]":                                "unsupported taint effect",
		"podLogsDir: logs":                                                             `pod logs path "logs" must be absolute path`,
		"podLogsDir: /var/log/":                                                        `pod logs path "/var/log/" must be normalized`,
		"podLogsDir: /var/lög":                                                         "must contain ASCII characters only",
		"enforceNodeAllocatable: [pods, pods]":                                         `duplicated enforcements "pods" in enforceNodeAllocatable`,
		"cgroupsPerQOS: false\nenforceNodeAllocatable: [kube-reserved]":                `cgroupsPerQOS (--cgroups-per-qos) must be set to true when "kube-reserved" contained`,
		"reservedSystemCPUs: '0'\nsystemReservedCgroup: /s":                            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup",
		"featureGates: {RotateKubeletServerCertificate: false}":                        "RotateKubeletServerCertificate",
	} {
		f, err := decodeFile([]byte(fileHead + text))
		cfg := Config{NodeName: "n"}
		if err == nil {
			err = cfg.Apply(f)
		}
		if err == nil {
			err = cfg.Complete()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// ignoredFields are the fields that are accepted without effect, because the kubelet does what they
// configure in another way: see docs/node-configuration.md. Apply reads or rejects all others; tests of each
// field would only repeat Apply.
var ignoredFields = []string{
	"SyncFrequency", "FileCheckFrequency", "RotateCertificates", "ServerTLSBootstrap", "VolumeStatsAggPeriod", "CgroupDriver", "CPUManagerReconcilePeriod",
	"HairpinMode", "MaxOpenFiles", "ContentType", "MakeIPTablesUtilChains", "IPTablesMasqueradeBit", "IPTablesDropBit",
	"ContainerLogMaxWorkers", "ConfigMapAndSecretChangeDetectionStrategy", "ShowHiddenMetricsForVersion", "VolumePluginDir",
	"KernelMemcgNotification", "EnableDebugFlagsHandler",
}

// TestEveryField checks that each field of KubeletConfiguration is handled: its name must occur in
// the sources that apply the configuration, or in ignoredFields.
func TestEveryField(t *testing.T) {
	var sources strings.Builder
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || name == "effective.go" || name == "defaults.go" {
			continue
		}
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(raw)
	}
	kind := reflect.TypeOf(kubeletv1beta1.KubeletConfiguration{})
	for i := range kind.NumField() {
		name := kind.Field(i).Name
		if !strings.Contains(sources.String(), "."+name) && !slices.Contains(ignoredFields, name) && name != "TypeMeta" {
			t.Errorf("field %s is not read", name)
		}
	}
}

func TestFlagsOfFields(t *testing.T) {
	flags, parsed := newFlags()
	if err := parsed.Parse([]string{
		"--hostname-override=n", "--manifest-url=http://x/y", "--manifest-url-header=a:b,a:c", "--feature-gates=MemoryQoS=true", "--registry-qps=0",
		"--reserved-memory=0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=2Gi", "--topology-manager-policy-options=prefer-closest-numa-nodes=true",
		"--maximum-dead-containers-per-container=3", "--minimum-container-ttl-duration=1m", "--image-service-endpoint=unix:///x",
	}); err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Config(parsed.Changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	if cfg.StaticPods.URL != "http://x/y" || len(cfg.StaticPods.Header["A"]) != 2 || !cfg.Gates["MemoryQoS"] || *cfg.Images.PullQPS != 0 || cfg.Resources.Memory.Reserved[1]["memory"] != 2<<30 ||
		cfg.Resources.Memory.Reserved[0]["hugepages-2Mi"] != 2<<20 || cfg.Resources.Topology.Options["prefer-closest-numa-nodes"] != "true" || *cfg.Containers.DeadContainers.PerContainer != 3 ||
		cfg.Containers.DeadContainers.MinAge != time.Minute || cfg.Images.Endpoint != "unix:///x" {
		t.Errorf("%+v", cfg)
	}
}

func FuzzApplyFile(f *testing.F) {
	f.Add([]byte(fileHead + "maxPods: 10\nevictionHard: {memory.available: 1Gi}\n"))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		if file, err := decodeFile(raw); err == nil {
			cfg := Config{NodeName: "n"}
			if cfg.Apply(file) == nil && cfg.Complete() == nil {
				cfg.Effective()
			}
		}
	})
}

// TestNoResolvConf checks that an empty resolvConf means no file, not the default file.
func TestNoResolvConf(t *testing.T) {
	of := func(text string) (string, *string) {
		t.Helper()
		f, err := decodeFile([]byte(fileHead + text))
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{NodeName: "n"}
		if err := errors.Join(cfg.Apply(f), cfg.Complete()); err != nil {
			t.Fatal(err)
		}
		return cfg.DNS.ResolvConf, cfg.Effective().ResolverConfig
	}
	if used, reported := of("resolvConf: ''"); used != "" || *reported != "" {
		t.Errorf("none: %q is used, %q reported", used, *reported)
	}
	if used, reported := of(""); used != dnsconf.Upstream() || *reported != used {
		t.Errorf("default: %q is used, %q reported", used, *reported)
	}
}

func FuzzDecodeFile(f *testing.F) {
	f.Add([]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 5\n"))
	f.Add([]byte(`{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","evictionHard":{"memory.available":"5%"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file, err := decodeFile(raw)
		if err != nil {
			return
		}
		// A fuzzer must not open arbitrary files.
		file.Authentication.X509.ClientCAFile, file.TLSCertFile, file.TLSPrivateKeyFile = "", "", ""
		cfg := Config{NodeName: "n"}
		if cfg.Apply(file) == nil {
			_ = cfg.Complete()
		}
	})
}

func TestDecodeFile(t *testing.T) {
	file, err := decodeFile([]byte(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDNS: [10.96.0.10]
maxPods: 42
containerLogMaxSize: 1Mi
healthzPort: 0
kubeReserved: {cpu: 100m}
systemReserved: {cpu: 200m, memory: 1Gi}
authorization: {mode: AlwaysAllow}
imageMinimumGCAge: 7m
`))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{NodeName: "n"}
	if err := cfg.Apply(file); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	cpu := cfg.Reserved.All[v1.ResourceCPU]
	if cfg.Node.MaxPods != 42 || cfg.Logs.MaxSize != 1<<20 || cfg.Server.HealthzPort != -1 || cpu.String() != "300m" || !cfg.Access.AlwaysAllow || cfg.Images.MinAge != 7*time.Minute {
		t.Errorf("config: %+v", cfg)
	}
	for _, bad := range []string{
		"kind: KubeletConfiguration", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnonsense: 1\n", "{",
	} {
		if _, err := decodeFile([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestAllowable(t *testing.T) {
	for name, want := range map[string]string{
		"kernel.msg*": "", "net.core.somaxconn": "", "net/core/somaxconn": "", "fs.mqueue.*": "",
		"kernel.pid_max": "not known to be namespaced", "vm.*": "not known to be namespaced", "net.*.x": "must have at most", "NET.CORE": "must have at most",
	} {
		err := validateAllowedSysctls([]string{name})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSystemCgroupsRefused checks that errors are those of upstream.
func TestSystemCgroupsRefused(t *testing.T) {
	for root, c := range map[string]struct{ name, want string }{
		"":  {"/system", "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified"},
		"/": {"/", `system container cannot be root ("/")`},
	} {
		cfg := Config{NodeName: "n"}
		if err := cfg.Apply(&kubeletv1beta1.KubeletConfiguration{SystemCgroups: c.name, CgroupRoot: root}); err != nil {
			t.Fatal(err)
		}
		if err := cfg.Complete(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s below %q: %v", c.name, root, err)
		}
	}
}
