package integration

import (
	"net"
	"testing"

	clientrest "k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/testserver"
)

// startServer runs an API server with cfg, after setting missing fields such as etcd and the log.
func startServer(t testing.TB, cfg apiserver.Config) *apiserver.Server {
	t.Helper()
	return testserver.Start(t, cfg)
}

func admin(s *apiserver.Server) *clientrest.Config { return s.ClientConfig("admin", "system:masters") }

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
