// Package compatflags declares the upstream component flags that have no effect in this
// implementation. They are accepted so that existing command lines keep working.
//
// A flag that only makes sense with certain values rejects any other value, so that users do not
// rely on a setting that is not honored.
package compatflags

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/internal/base/featuregates"
)

// Flag describes one flag that is accepted for compatibility.
type Flag struct {
	Name string
	// Why is the reason why the flag has no effect. It completes the sentence "Accepted for
	// compatibility: ".
	Why string
	// Only lists the allowed values, in lower case; the case of a value does not matter. If it is nil, any value is allowed.
	Only []string
	// Bool marks flags that may be given without a value.
	Bool bool
	// Check validates the value. It may be nil.
	Check func(text string) error
}

// Add adds flags to f and hides them from the help. Flags that f already has are not changed.
func Add(f *pflag.FlagSet, flags ...Flag) {
	for _, one := range flags {
		if f.Lookup(one.Name) != nil {
			continue
		}
		added := f.VarPF(&value{flag: one}, one.Name, "", "Accepted for compatibility: "+one.Why+".")
		added.Hidden = true
		if one.Bool {
			added.NoOptDefVal = "true"
		}
	}
}

// value is the pflag.Value of a Flag. It validates the text that a user specifies and has no other
// effect.
type value struct {
	flag Flag
	text string
}

// String returns the value that was set.
func (v *value) String() string { return v.text }

// Type returns the type name that pflag prints.
func (v *value) Type() string {
	if v.flag.Bool {
		return "bool"
	}
	return "string"
}

// Set stores text, the value that a user has specified. It returns an error if the Flag does not
// allow the value.
func (v *value) Set(text string) error {
	if v.flag.Only != nil && !slices.Contains(v.flag.Only, strings.ToLower(text)) {
		return fmt.Errorf("not supported: %s", v.flag.Why)
	}
	if v.flag.Check != nil {
		if err := v.flag.Check(text); err != nil {
			return err
		}
	}
	v.text = text
	return nil
}

// Logging returns upstream's logging flags, except -v. Add skips --logging-format for components
// that implement it and have added it before.
func Logging() []Flag {
	const why = "logs are written as text to standard error"
	return []Flag{
		{Name: "logging-format", Why: why, Only: []string{"", "text"}},
		{Name: "log-flush-frequency", Why: "log output is not buffered"},
		{Name: "log-text-info-buffer-size", Why: "log output is not buffered"},
		{Name: "log-text-split-stream", Why: why, Only: []string{"false"}, Bool: true},
		{Name: "log-json-info-buffer-size", Why: why},
		{Name: "log-json-split-stream", Why: why, Only: []string{"false"}, Bool: true},
		{Name: "vmodule", Why: "the log verbosity is the same for all files"},
	}
}

// Metrics returns the flags that configure metrics.
func Metrics() []Flag {
	return []Flag{
		{Name: "show-hidden-metrics-for-version", Why: "no metrics are hidden"},
		{Name: "disabled-metrics", Why: "all metrics are served", Only: []string{""}},
		{Name: "allow-metric-labels", Why: "metric labels are not restricted", Only: []string{""}},
		{Name: "allow-metric-labels-manifest", Why: "metric labels are not restricted", Only: []string{""}},
	}
}

// Versions returns the flags that select feature gates and emulated versions. A feature gate can
// only be set to the value that this build implements.
func Versions() []Flag {
	return []Flag{
		{Name: "feature-gates", Why: "feature gates have their default values", Check: checkGates},
		{Name: "emulated-version", Why: "only one Kubernetes version is supported", Only: []string{"", "1.37", "v1.37", "kube=1.37"}},
		{Name: "min-compatibility-version", Why: "only one Kubernetes version is supported"},
		{Name: "emulation-forward-compatible", Why: "only one Kubernetes version is supported", Bool: true},
	}
}

// checkGates returns an error if text, the value of --feature-gates, contains an unknown gate or a
// value that this build does not implement.
func checkGates(text string) error {
	gates, err := featuregates.Parse(text)
	if err != nil {
		return err
	}
	return gates.Check()
}

// LeaderElection returns the leader election flags that support only one value.
func LeaderElection() []Flag {
	return []Flag{{Name: "leader-elect-resource-lock", Why: "leader election uses leases", Only: []string{"leases"}}}
}

// Client returns the flags that configure requests to the API server.
func Client() []Flag {
	return []Flag{
		{Name: "kube-api-qps", Why: "API priority and fairness of the API server limits clients"},
		{Name: "kube-api-burst", Why: "API priority and fairness of the API server limits clients"},
		{Name: "kube-api-content-type", Why: "the content type is application/vnd.kubernetes.protobuf"},
	}
}

// Serving returns the flags of the secure port of components that serve only health checks and
// metrics.
func Serving() []Flag {
	const delegated = "authentication and authorization are delegated to the API server for each request"
	const trusted = "client certificates are verified with --client-ca-file"
	return []Flag{
		{Name: "contention-profiling", Why: "block profiling is not enabled", Bool: true},
		{Name: "requestheader-client-ca-file", Why: trusted},
		{Name: "requestheader-allowed-names", Why: trusted},
		{Name: "requestheader-username-headers", Why: trusted},
		{Name: "requestheader-uid-headers", Why: trusted},
		{Name: "requestheader-group-headers", Why: trusted},
		{Name: "requestheader-extra-headers-prefix", Why: trusted},
		{Name: "authentication-skip-lookup", Why: trusted, Bool: true},
		{Name: "authentication-tolerate-lookup-failure", Why: trusted, Bool: true},
		{Name: "authentication-token-webhook-cache-ttl", Why: delegated},
		{Name: "authorization-webhook-cache-authorized-ttl", Why: delegated},
		{Name: "authorization-webhook-cache-unauthorized-ttl", Why: delegated},
		{Name: "authorization-always-allow-paths", Why: "only health checks are always allowed"},
		{Name: "tls-cipher-suites", Why: "the cipher suites are the defaults of Go"},
		{Name: "tls-curve-preferences", Why: "the curve preferences are the defaults of Go"},
		{Name: "tls-min-version", Why: "the minimum version is TLS 1.2"},
		{Name: "tls-sni-cert-key", Why: "the certificate is read from --tls-cert-file", Only: []string{"", "[]"}},
		{Name: "cert-dir", Why: "self-signed certificates are not stored"},
		{Name: "permit-address-sharing", Why: "the port is not shared", Bool: true},
		{Name: "permit-port-sharing", Why: "the port is not shared", Bool: true},
		{Name: "http2-max-streams-per-connection", Why: "the limit is the default of Go"},
		{Name: "disable-http2-serving", Why: "both HTTP/1.1 and HTTP/2 are served", Only: []string{"false"}, Bool: true},
		{Name: "master", Why: "the API server address is read from --kubeconfig", Only: []string{""}},
	}
}
