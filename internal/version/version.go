// Package version tells which hyperkube this is and which Kubernetes it
// speaks.
package version

import (
	goruntime "runtime"

	apiversion "k8s.io/apimachinery/pkg/version"
)

// These are stamped by the build with -ldflags "-X …"; what stands here is
// what an unstamped build says of itself.
var (
	gitVersion = Kubernetes + "+hyperkube.0"
	gitCommit  = "unknown"
	buildDate  = "1970-01-01T00:00:00Z"
)

// Kubernetes is the version of the Kubernetes API that is served.
const Kubernetes = "v1.37.2"

// Get returns what /version answers and `hyperkube version` prints.
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

// Served is what /version of the API server answers: it serves the API of its
// own version, and can do without what the one before did not have.
func Served() apiversion.Info {
	v := Get()
	v.EmulationMajor, v.EmulationMinor = v.Major, v.Minor
	v.MinCompatibilityMajor, v.MinCompatibilityMinor = v.Major, "36"
	return v
}

// Tag returns the version in the alphabet of image tags, in which there is no
// "+".
func Tag() string {
	out := []byte(gitVersion)
	for i, c := range out {
		if c == '+' {
			out[i] = '-'
		}
	}
	return string(out)
}

// Image is the reference of the built-in image, whose root is this binary.
func Image() string { return "hyperkube:" + Tag() }
