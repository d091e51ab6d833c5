package client

import (
	"net"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// TestInitialLists checks that a reflector whose requests are refused can be stopped while it
// pauses.
func TestInitialLists(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	c, err := New(Config{REST: &rest.Config{Host: "http://" + address}})
	if err != nil {
		t.Fatal(err)
	}
	for _, initial := range []bool{false, true} {
		options := metav1.ListOptions{}
		if initial {
			options.SendInitialEvents = &initial
			options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
		}
		_, err := c.Kube.CoreV1().Pods("").Watch(t.Context(), options)
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("initial events %v: %v", initial, err)
		}
		if refused := utilnet.IsConnectionRefused(err); refused == initial {
			t.Errorf("initial events %v: connection refused reported: %v", initial, refused)
		}
	}
}
