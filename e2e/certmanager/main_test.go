//go:build linux

// Package certmanager tests that cert-manager issues certificates through the add-on gateway:
//
//	make cert-manager-test
//
// The controller of cert-manager, an ACME server (pebble) and a DNS server run as processes beside the cluster, in its network
// namespace. The pods that solve HTTP-01 challenges run in the cluster.
package certmanager

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"hyperkube/e2e/suite"
)

// nodeAddress is the address of the node, and hence of Gateways and Ingresses.
const nodeAddress = "198.18.61.1"

func TestMain(m *testing.M) {
	os.Exit(suite.Main(m, func(c suite.Cluster) error {
		link := "ip link add eth0 type veth peer name away && ip link set away up && ip link set eth0 up && ip addr add " + nodeAddress + "/24 dev eth0"
		if out, err := exec.Command("sh", "-c", link).CombinedOutput(); err != nil {
			return fmt.Errorf("creating a network interface: %w\n%s", err, out)
		}
		if err := c.Hyperkube("up", "--root", c.Root); err != nil {
			return err
		}
		return errors.Join(c.EnableGateway(), c.Hyperkube("kubectl", "wait", "--for=condition=Accepted", "gatewayclass/hyperkube", "--timeout=60s"))
	}))
}
