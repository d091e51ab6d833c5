package controlplane

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/components/cluster/progress"
)

func TestConfigDefaults(t *testing.T) {
	for name, documents := range map[string][]any{"init": initDefaults(), "join": joinDefaults()} {
		var b bytes.Buffer
		if err := printDocuments(&b, documents); err != nil {
			t.Fatal(err)
		}
		if err := validateConfig(b.Bytes()); err != nil {
			t.Errorf("default configuration of %s is not valid: %v\n%s", name, err, &b)
		}
		if name != "init" {
			continue
		}
		s, err := decodeInit(b.Bytes())
		if err != nil || s.Port != 6443 || s.TokenTTL != joindiscovery.DefaultTTL || s.Taints != nil || s.Domain != "cluster.local" {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

func TestValidateConfig(t *testing.T) {
	const head = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: "
	if err := validateConfig([]byte(kubeadmFile + "---\n" + head + "JoinConfiguration\n" +
		"discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'h:6443', unsafeSkipCAVerification: true}}\n")); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"":                               "no document of kubeadm.k8s.io/v1beta4",
		"kind: Pod\napiVersion: v1\n":    "no document of kubeadm.k8s.io/v1beta4",
		head + "ResetConfiguration\n":    "kind ResetConfiguration is not supported",
		head + "InitConfiguration\na: 1": `unknown field "a"`,
		head + "InitConfiguration\na: 1\nnodeRegistration: {criSocket: here}":                                                  `unknown field "nodeRegistration.criSocket"`,
		head + "InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: here}":                                                 "advertiseAddress",
		head + "InitConfiguration\nlocalAPIEndpoint: {bindPort: 70000}":                                                        "bindPort",
		head + "InitConfiguration\nnodeRegistration: {name: A_b}":                                                              "node name",
		head + "InitConfiguration\nbootstrapTokens: [{token: short}]":                                                          "bootstrap token",
		head + "InitConfiguration\ncertificateKey: xyz":                                                                        "certificateKey",
		head + "ClusterConfiguration\nnetworking: {podSubnet: 10.1.0.0}":                                                       "10.1.0.0",
		head + "ClusterConfiguration\ncontrolPlaneEndpoint: https://api":                                                       "controlPlaneEndpoint",
		head + "JoinConfiguration\n":                                                                                           "address of the API server",
		head + "JoinConfiguration\ndiscovery: {bootstrapToken: {token: x, apiServerEndpoint: 'h:6443'}}":                       "bootstrap token",
		strings.Replace(head, "v1beta4", "v1beta3", 1) + "InitConfiguration":                                                   "v1beta3 is not supported",
		head + "JoinConfiguration\ndiscovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'h:6443'}}": "hash of the cluster CA",
	} {
		if err := validateConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestRepeatedInitSettings: settings of earlier runs of init are stored and need not be repeated. A flag of a
// later run changes only its setting. Settings for a single run are not stored.
func TestRepeatedInitSettings(t *testing.T) {
	m := newTestNode(t)
	m.settings = controlPlaneSettings{
		Port: 7443, SANs: []string{"api.example.org"}, Advertise: "192.0.2.1", Taints: []string{},
		Token: "abcdef.0123456789abcdef", TokenTTL: time.Hour, UploadCerts: true, CertificateKey: "k", With: []string{"metrics"},
	}
	if err := m.saveSettings(); err != nil {
		t.Fatal(err)
	}
	settings := func(o *initOptions, flags ...string) controlPlaneSettings {
		t.Helper()
		o.flags.TokenTTL = 24 * time.Hour
		s, err := o.settings(m.layout, func(name string) bool {
			for _, f := range flags {
				if f == name {
					return true
				}
			}
			return false
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := controlPlaneSettings{Port: 7443, SANs: []string{"api.example.org"}, Advertise: "192.0.2.1", Taints: []string{}, TokenTTL: 24 * time.Hour}
	if got := settings(&initOptions{flags: controlPlaneSettings{Port: 6443}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	want.Port = 8443
	if got := settings(&initOptions{flags: controlPlaneSettings{Port: 8443}}, "apiserver-bind-port"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	file := filepath.Join(t.TempDir(), "init.yaml")
	if err := os.WriteFile(file, []byte(kubeadmFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := settings(&initOptions{config: file}); got.Advertise != "192.0.2.1" || got.Port != 7443 || !reflect.DeepEqual(got.SANs, []string{"api.example.com"}) {
		t.Errorf("with a configuration file: %+v", got)
	}
}

// TestDiscoverReportsError: when the cluster does not answer, join prints the reason and the command that
// creates a new join command.
func TestDiscoverReportsError(t *testing.T) {
	o := &joinOptions{discovery: joindiscovery.Discovery{Endpoint: "127.0.0.1:1", Unsafe: true}}
	var lines []string
	_, err := o.discover(context.Background(), progress.Waiter{
		FirstReport: 50 * time.Millisecond, ReportInterval: 100 * time.Millisecond, Timeout: time.Second,
		Report: func(text string) { lines = append(lines, text) },
	})
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "token create") {
		t.Errorf("error %v", err)
	}
	if len(lines) == 0 || !strings.Contains(lines[len(lines)-1], "waiting for the cluster at 127.0.0.1:1") || !strings.Contains(lines[len(lines)-1], "connection refused") {
		t.Errorf("output %q", lines)
	}
}
