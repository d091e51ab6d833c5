//go:build linux

// Package policyconformance runs the conformance suite of the network policy API against a cluster of two nodes:
//
//	make policy-conformance
//
// The suite is the official one, sigs.k8s.io/network-policy-api/conformance. A program of this module takes the place of the
// image of its manifests. It sends and receives SCTP packets without the SCTP of the kernel.
package policyconformance

import (
	"errors"
	"os"
	"testing"

	"hyperkube/e2e/suite"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	api "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	conformance "sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

// modeEnv is the proxy mode of the cluster.
const modeEnv = "HYPERKUBE_PROXY_MODE"

// TestMain starts a cluster of two nodes, because the suite runs two pods with the same host ports.
func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, func(c suite.Cluster) error {
		mode := os.Getenv(modeEnv)
		if mode == "" {
			mode = "nftables"
		}
		return errors.Join(
			c.Hyperkube("up", "--root", c.Root, "--nodes", "2", "--proxy-mode", mode, "--with", "cluster-network-policy"),
			c.Hyperkube("kubectl", "wait", "--for=condition=Established", "--timeout=60s", "crd/clusternetworkpolicies.policy.networking.k8s.io"),
		)
	}))
}

// TestConformance runs the suite.
func TestConformance(t *testing.T) {
	suite.Get(t).Import(t, suite.Image{
		Package: "hyperkube/e2e/policyconformance/agnhost",
		Names:   []string{"registry.k8s.io/e2e-test-images/agnhost:2.45"},
		Links:   []string{"agnhost", "bin/bash"},
	})
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Install(c.Scheme()); err != nil {
		t.Fatal(err)
	}
	clientSet, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s := conformance.New(conformance.Options{
		Client: c, ClientSet: clientSet, KubeConfig: *config,
		EnableAllSupportedFeatures: true,
		// The definition of the standard channel does not have the field nodes.
		ExemptFeatures: sets.New(conformance.SupportClusterNetworkPolicyEgressNodePeers),
	})
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
}
