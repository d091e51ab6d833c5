// Package accepted has the flags that upstream's components have and that
// nothing here depends on: what they ask for is always so, or does not exist.
// A flag that asks for something else is refused, so that nobody believes to
// have got it.
package accepted

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"hyperkube/internal/featuregates"
)

// Flag is one of them.
type Flag struct {
	Name string
	// Why nothing depends on it: the end of a sentence that begins with the
	// flag.
	Why string
	// Only are the values that may be given; nil: any may.
	Only []string
	// Bool flags may come without a value.
	Bool bool
	// Check, unless nil, refuses values.
	Check func(text string) error
}

// Add adds flags to f, hidden from the help. A flag that is there already stays.
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

// value is of a flag that was given. It implements pflag.Value.
type value struct {
	flag Flag
	text string
}

// String is what was given.
func (v *value) String() string { return v.text }

// Type is how pflag calls it.
func (v *value) Type() string {
	if v.flag.Bool {
		return "bool"
	}
	return "string"
}

// Set takes what is given, or refuses it.
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

// Logging are the flags of logs. What is logged and how is decided by -v alone.
func Logging() []Flag {
	const why = "logs are lines of text on standard error"
	return []Flag{
		{Name: "logging-format", Why: why, Only: []string{"", "text"}},
		{Name: "log-flush-frequency", Why: "nothing is held back"},
		{Name: "log-text-info-buffer-size", Why: "nothing is held back"},
		{Name: "log-text-split-stream", Why: why, Only: []string{"false"}, Bool: true},
		{Name: "log-json-info-buffer-size", Why: why},
		{Name: "log-json-split-stream", Why: why, Only: []string{"false"}, Bool: true},
		{Name: "vmodule", Why: "verbosity is the same everywhere"},
	}
}

// Metrics are the flags of metrics.
func Metrics() []Flag {
	return []Flag{
		{Name: "show-hidden-metrics-for-version", Why: "no metrics are hidden"},
		{Name: "disabled-metrics", Why: "all metrics are served", Only: []string{""}},
		{Name: "allow-metric-labels", Why: "labels of metrics are as they are", Only: []string{""}},
		{Name: "allow-metric-labels-manifest", Why: "labels of metrics are as they are", Only: []string{""}},
	}
}

// Versions are the flags that choose features and versions to be like.
func Versions() []Flag {
	return []Flag{
		{Name: "feature-gates", Why: "the features are those that are on by default", Check: checkGates},
		{Name: "emulated-version", Why: "it is of one version alone", Only: []string{"", "1.37", "v1.37", "kube=1.37"}},
		{Name: "min-compatibility-version", Why: "it is of one version alone"},
		{Name: "emulation-forward-compatible", Why: "it is of one version alone", Bool: true},
	}
}

// checkGates refuses gates that do not exist or that cannot be what they are
// set to.
func checkGates(text string) error {
	gates, err := featuregates.Parse(text)
	if err != nil {
		return err
	}
	return gates.Check()
}

// Leading are the flags of leader election that have one value.
func Leading() []Flag {
	return []Flag{{Name: "leader-elect-resource-lock", Why: "leaders are elected by leases", Only: []string{"leases"}}}
}

// Client are the flags of a component's requests to the API server.
func Client() []Flag {
	return []Flag{
		{Name: "kube-api-qps", Why: "clients are limited by the server's fairness"},
		{Name: "kube-api-burst", Why: "clients are limited by the server's fairness"},
		{Name: "kube-api-content-type", Why: "it is application/vnd.kubernetes.protobuf"},
	}
}

// Serving are the flags of the secure port of components that serve health and
// metrics alone.
func Serving() []Flag {
	const delegated = "who may see what is asked of the API server for each request"
	const trusted = "client certificates are those of --client-ca-file"
	return []Flag{
		{Name: "contention-profiling", Why: "what blocks is not sampled", Bool: true},
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
		{Name: "authorization-always-allow-paths", Why: "health is for everybody, the rest is asked for"},
		{Name: "tls-cipher-suites", Why: "cipher suites are Go's choice"},
		{Name: "tls-curve-preferences", Why: "curves are Go's choice"},
		{Name: "tls-min-version", Why: "it is TLS 1.2"},
		{Name: "tls-sni-cert-key", Why: "the certificate is that of --tls-cert-file", Only: []string{"", "[]"}},
		{Name: "cert-dir", Why: "a certificate that it makes is not kept"},
		{Name: "permit-address-sharing", Why: "the port is its own", Bool: true},
		{Name: "permit-port-sharing", Why: "the port is its own", Bool: true},
		{Name: "http2-max-streams-per-connection", Why: "it is Go's choice"},
		{Name: "disable-http2-serving", Why: "clients choose between HTTP/1.1 and HTTP/2", Only: []string{"false"}, Bool: true},
		{Name: "master", Why: "the server is that of --kubeconfig", Only: []string{""}},
	}
}
