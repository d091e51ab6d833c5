package masters

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hyperkube/components/cluster/progress"
	"hyperkube/components/cluster/trust"
)

func TestConfigDefaults(t *testing.T) {
	for name, documents := range map[string][]any{"init": initDefaults(), "join": joinDefaults()} {
		var b bytes.Buffer
		if err := printDocuments(&b, documents); err != nil {
			t.Fatal(err)
		}
		if err := validateConfig(b.Bytes()); err != nil {
			t.Errorf("what is printed for %s is refused: %v\n%s", name, err, &b)
		}
		if name != "init" {
			continue
		}
		s, err := decodeInit(b.Bytes())
		if err != nil || s.Port != 6443 || s.TokenTTL != trust.DefaultTTL || s.Taints != nil || s.Domain != "cluster.local" {
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
		"":                               "nothing of kubeadm.k8s.io/v1beta4",
		"kind: Pod\napiVersion: v1\n":    "nothing of kubeadm.k8s.io/v1beta4",
		head + "ResetConfiguration\n":    "ResetConfiguration means nothing",
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
		strings.Replace(head, "v1beta4", "v1beta3", 1) + "InitConfiguration":                                                   "v1beta3 cannot be read",
		head + "JoinConfiguration\ndiscovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'h:6443'}}": "hash of the cluster's authority",
	} {
		if err := validateConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestInitAgain: what init was told once it need not be told again, and what it is told
// anew changes that alone; but for what is for one run.
func TestInitAgain(t *testing.T) {
	m := testMaster(t)
	m.settings = masterSettings{
		Port: 7443, SANs: []string{"api.example.org"}, Advertise: "192.0.2.1", Taints: []string{},
		Token: "abcdef.0123456789abcdef", TokenTTL: time.Hour, UploadCerts: true, CertificateKey: "k", With: []string{"metrics"},
	}
	if err := m.keepSettings(); err != nil {
		t.Fatal(err)
	}
	again := func(o *initOptions, flags ...string) masterSettings {
		t.Helper()
		o.given.TokenTTL = 24 * time.Hour
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
	want := masterSettings{Port: 7443, SANs: []string{"api.example.org"}, Advertise: "192.0.2.1", Taints: []string{}, TokenTTL: 24 * time.Hour}
	if got := again(&initOptions{given: masterSettings{Port: 6443}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	want.Port = 8443
	if got := again(&initOptions{given: masterSettings{Port: 8443}}, "apiserver-bind-port"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	file := filepath.Join(t.TempDir(), "init.yaml")
	if err := os.WriteFile(file, []byte(kubeadmFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := again(&initOptions{config: file}); got.Advertise != "192.0.2.1" || got.Port != 7443 || !reflect.DeepEqual(got.SANs, []string{"api.example.com"}) {
		t.Errorf("by a file: %+v", got)
	}
}

// TestFindTells: who joins a cluster that does not answer is told so, and by what a
// machine joins that does.
func TestFindTells(t *testing.T) {
	o := &joinOptions{discovery: trust.Discovery{Endpoint: "127.0.0.1:1", Unsafe: true}}
	var said []string
	_, err := o.find(context.Background(), progress.Patience{
		First: 50 * time.Millisecond, Every: 100 * time.Millisecond, Bound: time.Second,
		Say: func(text string) { said = append(said, text) },
	})
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "token create") {
		t.Errorf("the error is %v", err)
	}
	if len(said) == 0 || !strings.Contains(said[len(said)-1], "waiting for the cluster at 127.0.0.1:1") || !strings.Contains(said[len(said)-1], "connection refused") {
		t.Errorf("it says %q", said)
	}
}
