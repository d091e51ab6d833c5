package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const fileHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

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
	if none, err := LoadFiles("", "", nil); none != nil || err != nil {
		t.Errorf("of nothing: %v, %v", none, err)
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
	var o options
	cmd := newCommand(&o)
	if err := cmd.ParseFlags([]string{"--config", path, "--max-pods=20", "--eviction-hard=memory.available<2Gi", "--kube-reserved=cpu=100m,memory=1Gi", "--hostname-override=n"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := o.build(cmd.Flags().Changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	f := cfg.Effective()
	if f.MaxPods != 20 || len(f.EvictionHard) != 1 || f.EvictionHard["memory.available"] != "2Gi" || f.KubeReserved["cpu"] != "100m" ||
		f.ImageMinimumGCAge.Duration != time.Minute || f.CPUManagerPolicy != "none" || *f.EventRecordQPS != 50 {
		t.Errorf("in force: %+v", f)
	}
}

func TestRefusedFiles(t *testing.T) {
	for text, want := range map[string]string{
		"evictionSoft: {memory.available: 1Gi}":                           "grace period must be specified",
		"enforceNodeAllocatable: [pods, none]":                            "none goes with nothing else",
		"enforceNodeAllocatable: [kube-reserved]":                         "needs kubeReservedCgroup",
		"enforceNodeAllocatable: [everything]":                            "unsupported",
		"kubeReserved: {cpu: lots}":                                       "kubeReserved cpu",
		"kubeReserved: {gpu: '1'}":                                        "cannot be reserved",
		"serializeImagePulls: true\nmaxParallelImagePulls: 3":             "unless serializeImagePulls is false",
		"crashLoopBackOff: {maxContainerRestartPeriod: 10m}":              "maxContainerRestartPeriod",
		"memorySwap: {swapBehavior: Some}":                                "want NoSwap or LimitedSwap",
		"tlsMinVersion: VersionTLS10":                                     "want VersionTLS12",
		"tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA]":                     "not safe",
		"readOnlyPort: 10255":                                             "readOnlyPort is not supported",
		"containerLogMaxFiles: 1":                                         "containerLogMaxFiles must be greater than 1",
		"imageGCHighThresholdPercent: 10\nimageGCLowThresholdPercent: 50": "imageGCHighThresholdPercent",
		"nodeStatusMaxImages: 0":                                          "nodeStatusMaxImages",
		"evictionMinimumReclaim: {memory.used: 1Gi}":                      "unsupported signal",
	} {
		f, err := DecodeFile([]byte(fileHead + text))
		cfg := Config{NodeName: "n"}
		if err == nil {
			err = cfg.Apply(f)
		}
		if err == nil {
			err = cfg.complete()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzApplyFile(f *testing.F) {
	f.Add([]byte(fileHead + "maxPods: 10\nevictionHard: {memory.available: 1Gi}\n"))
	f.Fuzz(func(_ *testing.T, raw []byte) {
		if file, err := DecodeFile(raw); err == nil {
			cfg := Config{NodeName: "n"}
			if cfg.Apply(file) == nil && cfg.complete() == nil {
				cfg.Effective()
			}
		}
	})
}
