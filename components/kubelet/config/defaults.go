package config

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"hyperkube/components/kubelet/pod/podstate"
)

// defaultRuntimeTimeout and the other constants are the defaults of Config. Each default is defined here and
// nowhere else: Config.Complete, the checks of the configuration file, the flags and the effective configuration
// use these values.
const (
	defaultRuntimeTimeout = 2 * time.Minute

	defaultMaxPods       = 110
	defaultUpdate        = 10 * time.Second
	defaultReport        = 5 * time.Minute
	defaultLease         = 40 * time.Second
	defaultMaxImages     = 50
	defaultManifestCheck = 20 * time.Second

	// defaultOOMScore makes the kernel kill pods and other processes before the kubelet, because
	// only the kubelet can restart the pods.
	defaultOOMScore = -999

	// defaultCPUQuotaPeriod is the kernel's default, which applies without the feature gate.
	defaultCPUQuotaPeriod = 100 * time.Millisecond
	defaultCrashMax       = podstate.CrashMax

	defaultPullQPS     = 5
	defaultPullBurst   = 10
	defaultImageGCHigh = 85
	defaultImageGCLow  = 80
	defaultImageMinAge = 2 * time.Minute

	defaultLogMaxSize  = 10 << 20
	defaultLogMaxFiles = 5
	defaultLogInterval = 10 * time.Second

	defaultEvictionTransition = 5 * time.Minute

	defaultHealthzAddress = "127.0.0.1"
	defaultStreamIdle     = 4 * time.Hour
	defaultTokenTTL       = 2 * time.Minute
	defaultAllowTTL       = 5 * time.Minute
	defaultDenyTTL        = 30 * time.Second

	defaultEventQPS   = 50
	defaultEventBurst = 100
)

// defaultAPIQPS and the other constants are the defaults of fields of KubeletConfiguration that are not part of
// Config.
const (
	defaultAPIQPS                = 50
	defaultAPIBurst              = 100
	defaultIPTablesMasqueradeBit = 14
	defaultIPTablesDropBit       = 15
)

// EvictionHard returns the default hard eviction thresholds, which are upstream's.
func EvictionHard() map[string]string {
	return map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
}

// maxMinFreeFullDisk is the upper bound of MinFreeFullDisk, in bytes: enough for the logs and writable layers of pods
// until the kubelet has removed unused images.
const maxMinFreeFullDisk = 2 << 30

// MinFreeFullDisk returns how much of a file system of size bytes must be free, in bytes, so that a node that shares
// the disk of a developer machine does not evict pods: 5 %, at most 2 GiB.
func MinFreeFullDisk(size int64) int64 { return min(size/20, maxMinFreeFullDisk) }

// EvictionHardFullDisk returns the default hard eviction thresholds of nodes that share the disk of a
// developer machine: EvictionHard with MinFreeFullDisk instead of 10 % and 15 % of free space. Such a disk is often
// nearly full, and 15 % of a large disk is more free space than a node needs. The arguments are the sizes in bytes
// of the file systems of the kubelet's directory and of the images; 0 means unknown.
func EvictionHardFullDisk(nodeDisk, imageDisk int64) map[string]string {
	hard := EvictionHard()
	for signal, size := range map[string]int64{"nodefs.available": nodeDisk, "imagefs.available": imageDisk} {
		// A percentage remains correct if the file system is enlarged.
		hard[signal] = "5%"
		if MinFreeFullDisk(size) == maxMinFreeFullDisk {
			hard[signal] = resource.NewQuantity(maxMinFreeFullDisk, resource.BinarySI).String()
		}
	}
	return hard
}

// setFileDefaults sets upstream's default of each unset field of f that is not part of Config.
func setFileDefaults(f *kubeletv1beta1.KubeletConfiguration) {
	text := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	period := func(p *metav1.Duration, v time.Duration) {
		if p.Duration == 0 {
			p.Duration = v
		}
	}
	number := func(p **int32, v int32) {
		if *p == nil {
			*p = &v
		}
	}
	yes := func(p **bool, v bool) {
		if *p == nil {
			*p = &v
		}
	}
	period(&f.SyncFrequency, time.Minute)
	period(&f.FileCheckFrequency, 20*time.Second)
	period(&f.VolumeStatsAggPeriod, time.Minute)
	period(&f.CPUManagerReconcilePeriod, 10*time.Second)
	text(&f.Address, "0.0.0.0")
	text(&f.CgroupDriver, "cgroupfs")
	if f.MemoryReservationPolicy == "" {
		f.MemoryReservationPolicy = kubeletv1beta1.NoneMemoryReservationPolicy
	}
	text(&f.TopologyManagerPolicy, kubeletv1beta1.NoneTopologyManagerPolicy)
	text(&f.TopologyManagerScope, kubeletv1beta1.ContainerTopologyManagerScope)
	text(&f.HairpinMode, kubeletv1beta1.PromiscuousBridge)
	text(&f.ContentType, "application/vnd.kubernetes.protobuf")
	text(&f.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	text(&f.MemorySwap.SwapBehavior, "NoSwap")
	number(&f.KubeAPIQPS, defaultAPIQPS)
	number(&f.IPTablesMasqueradeBit, defaultIPTablesMasqueradeBit)
	number(&f.IPTablesDropBit, defaultIPTablesDropBit)
	number(&f.ContainerLogMaxWorkers, 1)
	yes(&f.EnableControllerAttachDetach, true)
	yes(&f.MakeIPTablesUtilChains, true)
	yes(&f.EnableDebugFlagsHandler, true)
	yes(&f.MergeDefaultEvictionSettings, false)
	if f.KubeAPIBurst == 0 {
		f.KubeAPIBurst = defaultAPIBurst
	}
	if f.MaxOpenFiles == 0 {
		f.MaxOpenFiles = 1000000
	}
	if f.ConfigMapAndSecretChangeDetectionStrategy == "" {
		f.ConfigMapAndSecretChangeDetectionStrategy = kubeletv1beta1.WatchChangeDetectionStrategy
	}
	if f.Logging.Format == "" {
		f.Logging.Format = "text"
	}
	if f.Logging.FlushFrequency.Duration.Duration == 0 {
		f.Logging.FlushFrequency.Duration.Duration, f.Logging.FlushFrequency.SerializeAsString = 5*time.Second, true
	}
}
