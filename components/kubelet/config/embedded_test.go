package config

import (
	"net/netip"
	"testing"

	"github.com/spf13/pflag"
)

// TestOverrides checks that flags take precedence over a document and over the values of a program.
func TestOverrides(t *testing.T) {
	const document = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\npodPidsLimit: 9\n"
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := NewOverrides(set)
	if err := set.Parse([]string{"--max-pods=8", "--node-labels=a=b", "--node-ip=192.0.2.2", "--event-qps=3", "--feature-gates=GracefulNodeShutdown=true"}); err != nil {
		t.Fatal(err)
	}
	file, err := o.Load([]byte(document), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Validate(file); err != nil {
		t.Error(err)
	}
	c := Config{NodeName: "n", Node: Node{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, Server: Server{Port: 10250}}
	if err := c.Apply(file); err != nil {
		t.Fatal(err)
	}
	if err := o.Apply(&c); err != nil {
		t.Fatal(err)
	}
	if c.Node.MaxPods != 8 || c.Containers.PidsLimit != 9 || c.Node.Labels["a"] != "b" || len(c.Node.IPs) != 1 || c.Node.IPs[0].String() != "192.0.2.2" || *c.Events.QPS != 3 || !c.Gates["GracefulNodeShutdown"] || c.Server.Port != 10250 {
		t.Errorf("%+v", c)
	}
	var none *Overrides
	if file, err := none.Load(nil, "", ""); file != nil || err != nil || none.Apply(&c) != nil || none.Validate(nil) != nil {
		t.Errorf("without flags: %v, %v", file, err)
	}
	if file, err := none.Load([]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {nosuch: 5%}\n"), "", ""); err != nil || none.Validate(file) == nil {
		t.Errorf("an unknown eviction signal is accepted: %v", err)
	}
}
