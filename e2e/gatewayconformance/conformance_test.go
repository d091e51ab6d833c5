//go:build linux

// Package gatewayconformance runs the conformance suite of the Gateway API against a cluster with the add-on gateway:
//
//	make gateway-conformance
//
// `make test` runs the tests of the target gateway-conformance-subset: one for each kind of route with a hostname.
//
// The suite is the official one, sigs.k8s.io/gateway-api/conformance. The backend images of its manifests are built from
// the sources in the same module, and imported under the names that the manifests use.
package gatewayconformance

import (
	"errors"
	"os"
	"testing"

	"sigs.k8s.io/gateway-api/conformance"

	"hyperkube/e2e/suite"
)

// backends are the images of the suite's manifests.
func backends() []suite.Image {
	return []suite.Image{
		{
			Package: "sigs.k8s.io/gateway-api/conformance/echo-basic",
			Names: []string{
				"registry.k8s.io/gateway-api/echo-basic:v1.5.1", "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.2", "registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.3",
			},
		},
		// The suite uses CoreDNS as a backend that answers datagrams. Any DNS server with the same records will do.
		{Package: "hyperkube/e2e/gatewayconformance/dnsbackend", Names: []string{"registry.k8s.io/coredns/coredns:v1.12.2"}},
	}
}

// TestMain runs the tests against a new cluster with the add-on gateway. The cluster of $HYPERKUBE_E2E_EXTERNAL must have it too.
func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, func(c suite.Cluster) error {
		return errors.Join(c.Hyperkube("up", "--root", c.Root), c.EnableGateway())
	}))
}

// TestConformance runs the suite. The flags of the suite select profiles and tests, see conformance/utils/flags.
func TestConformance(t *testing.T) {
	c := suite.Get(t)
	for _, image := range backends() {
		c.Import(t, image)
	}
	conformance.RunConformance(t)
}
