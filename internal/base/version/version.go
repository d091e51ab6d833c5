// Package version contains the version of hyperkube and of the Kubernetes API that it serves.
package version

import (
	goruntime "runtime"

	apiversion "k8s.io/apimachinery/pkg/version"
)

// gitVersion, gitCommit and buildDate describe the build. A release sets them with -ldflags "-X …"; the values
// below are those of other builds.
var (
	gitVersion = Kubernetes + "+hyperkube.0"
	gitCommit  = "unknown"
	buildDate  = "1970-01-01T00:00:00Z"
)

// Kubernetes is the version of the served Kubernetes API.
const Kubernetes = "v1.37.2"

// Get returns the version that /version and `hyperkube version` report.
func Get() apiversion.Info {
	return apiversion.Info{
		Major:        "1",
		Minor:        "37",
		GitVersion:   gitVersion,
		GitCommit:    gitCommit,
		GitTreeState: "clean",
		BuildDate:    buildDate,
		GoVersion:    goruntime.Version(),
		Compiler:     goruntime.Compiler,
		Platform:     goruntime.GOOS + "/" + goruntime.GOARCH,
	}
}

// Served returns the version that /version of the API server reports. In addition to Get, it
// contains the emulation version, which is this version, and the minimum compatibility version,
// which is the previous minor version.
func Served() apiversion.Info {
	v := Get()
	v.EmulationMajor, v.EmulationMinor = v.Major, v.Minor
	v.MinCompatibilityMajor, v.MinCompatibilityMinor = v.Major, "36"
	return v
}

// Tag returns the version as an image tag, in which "+" is not allowed.
func Tag() string {
	out := []byte(gitVersion)
	for i, c := range out {
		if c == '+' {
			out[i] = '-'
		}
	}
	return string(out)
}

// Image returns the reference of the built-in image, which contains this binary.
func Image() string { return "hyperkube:" + Tag() }
