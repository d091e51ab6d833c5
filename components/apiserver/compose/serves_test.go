package compose_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestServes(t *testing.T) {
	e := start(t)
	for gvr, want := range map[schema.GroupVersionResource]bool{
		{Version: "v1", Resource: "pods"}:                               true,
		{Group: "apps", Version: "v1", Resource: "deployments"}:         true,
		{Group: "apps", Version: "v1beta9", Resource: "deployments"}:    false,
		{Group: "unserved.example.com", Version: "v1", Resource: "any"}: false,
	} {
		if got := e.server.Serves(gvr); got != want {
			t.Errorf("serves %s: %t", gvr, got)
		}
	}
}
