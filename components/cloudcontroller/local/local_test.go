package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
)

// TestConfiguration checks that invalid files are refused with their position, and that a file is read again.
func TestConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cloud.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"machine: []":                      "machine",
		"machines: [{zone: a}]":            "machines[0].name is required",
		"machines: [{name: a}, {name: a}]": `"a" is listed twice`,
		"zone: [":                          "cloud.yaml",
		"zone: a\n---\nzone: b":            "2 YAML documents",
	} {
		write(text)
		if _, err := New(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	if _, err := New(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file is accepted")
	}
	write("machines: [{name: a}]")
	p, err := New(file)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	if exists, err := p.InstanceExists(t.Context(), node); exists || err != nil {
		t.Errorf("a machine that is not listed exists: %v, %v", exists, err)
	}
	write("machines: [{name: b, stopped: true}]")
	if exists, err := p.InstanceExists(t.Context(), node); !exists || err != nil {
		t.Errorf("a machine that is listed now does not exist: %v, %v", exists, err)
	}
	if stopped, err := p.InstanceShutdown(t.Context(), node); !stopped || err != nil {
		t.Errorf("a stopped machine runs: %v, %v", stopped, err)
	}
	// A damaged file must not delete Nodes.
	write("machines: {")
	if _, err := p.InstanceExists(t.Context(), node); err == nil {
		t.Error("a damaged file is no error")
	}
}

func TestAddresses(t *testing.T) {
	internal := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
	}
	for name, c := range map[string]struct {
		provided string
		status   []corev1.NodeAddress
		machine  Machine
		want     string
	}{
		"provided":          {"10.0.0.1", []corev1.NodeAddress{internal("10.9.9.9")}, Machine{}, "InternalIP=10.0.0.1 Hostname=n"},
		"dual-stack":        {"10.0.0.1,fd00::1", nil, Machine{}, "InternalIP=10.0.0.1 InternalIP=fd00::1 Hostname=n"},
		"of the Node":       {"", []corev1.NodeAddress{internal("10.0.0.2")}, Machine{}, "InternalIP=10.0.0.2 Hostname=n"},
		"configured":        {"", nil, Machine{Addresses: []corev1.NodeAddress{internal("10.0.0.3")}}, "InternalIP=10.0.0.3 Hostname=n"},
		"external":          {"10.0.0.1", nil, Machine{Addresses: []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}}}, "InternalIP=10.0.0.1 Hostname=n ExternalIP=192.0.2.1"},
		"none":              {"", nil, Machine{}, "error: node n has no address"},
		"damaged":           {"x", nil, Machine{}, "error: parsing annotation"},
		"hostname repeated": {"", []corev1.NodeAddress{internal("10.0.0.2"), {Type: corev1.NodeHostName, Address: "n"}}, Machine{}, "InternalIP=10.0.0.2 Hostname=n"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Addresses: c.status}}
		if c.provided != "" {
			node.Annotations = map[string]string{cloudproviderapi.AnnotationAlphaProvidedIPAddr: c.provided}
		}
		list, err := c.machine.addresses(node)
		var got []string
		for _, a := range list {
			got = append(got, string(a.Type)+"="+a.Address)
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = "error: " + err.Error()
		}
		if !strings.HasPrefix(text, c.want) {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}
