package componentmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"hyperkube/internal/base/featuregates"
	"hyperkube/internal/base/version"
)

// Build returns the collector of the metrics kubernetes_build_info, version_info and kubernetes_feature_enabled.
// gates contains the feature gates that were set explicitly; it may be nil, and all others have their default.
func Build(gates featuregates.Set) prometheus.Collector { return build{gates} }

// build is the collector that Build returns. gates are the feature gates that were set explicitly.
type build struct{ gates featuregates.Set }

var (
	buildDesc = prometheus.NewDesc("kubernetes_build_info",
		"[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		[]string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"}, nil)
	versionsDesc = prometheus.NewDesc("version_info",
		"[ALPHA] Provides the compatibility version info of the component. The component label is the name of the component, usually kube, but is relevant for aggregated-apiservers.",
		[]string{"component", "binary", "emulation", "min_compat"}, nil)
	featureDesc = prometheus.NewDesc("kubernetes_feature_enabled",
		"[BETA] This metric records the data about the stage and enablement of a k8s feature.", []string{"name", "stage"}, nil)
)

// Describe implements prometheus.Collector. It describes the metrics of the build, the versions and
// the feature gates.
func (build) Describe(ch chan<- *prometheus.Desc) {
	ch <- buildDesc
	ch <- versionsDesc
	ch <- featureDesc
}

// Collect implements prometheus.Collector. It sends the build information, the versions and the
// feature gates, which never change.
func (b build) Collect(ch chan<- prometheus.Metric) {
	v := version.Get()
	ch <- prometheus.MustNewConstMetric(buildDesc, prometheus.GaugeValue, 1,
		v.Major, v.Minor, v.GitVersion, v.GitCommit, v.GitTreeState, v.BuildDate, v.GoVersion, v.Compiler, v.Platform)
	served := version.Served()
	ch <- prometheus.MustNewConstMetric(versionsDesc, prometheus.GaugeValue, 1, "kube", version.Kubernetes[1:],
		served.EmulationMajor+"."+served.EmulationMinor, served.MinCompatibilityMajor+"."+served.MinCompatibilityMinor)
	for f := range featuregates.All() {
		value := 0.0
		if b.gates.Enabled(f.Name, f.Enabled) {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(featureDesc, prometheus.GaugeValue, value, f.Name, f.Stage)
	}
}
