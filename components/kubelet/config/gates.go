package config

// GateShutdown and the other constants are the feature gates that the kubelet supports, with upstream's names. All
// are enabled by default.
const (
	GateShutdown           = "GracefulNodeShutdown"
	GateShutdownByPriority = "GracefulNodeShutdownBasedOnPodPriority"
	GateMemoryQoS          = "MemoryQoS"
	// GateNoQuota removes the CPU quota of containers with exclusive CPUs.
	GateNoQuota = "DisableCPUQuotaWithExclusiveCPUs"
	// GatePulledImages makes pods present credentials for images that are present on the node.
	GatePulledImages = "KubeletEnsureSecretPulledImages"
	// GateCPUBeta allows the beta options of the CPU manager policy.
	GateCPUBeta = "CPUManagerPolicyBetaOptions"
	// GateQuotaPeriod allows a CPU quota period other than the default.
	GateQuotaPeriod = "CustomCPUCFSQuotaPeriod"
	// GatePodsAPI serves the pods of the node on a socket.
	GatePodsAPI = "PodsAPI"
)

// supportedFeatureGates are the feature gates that the kubelet supports.
var supportedFeatureGates = []string{GateShutdown, GateShutdownByPriority, GateMemoryQoS, GateNoQuota, GatePulledImages, GateCPUBeta, GateQuotaPeriod, GatePodsAPI}
