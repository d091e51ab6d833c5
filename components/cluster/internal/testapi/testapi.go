// Package testapi runs an API server with an etcd in the process of a test, for tests of packages that write
// objects.
package testapi

import (
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hyperkube/components/apiserver"
	"hyperkube/components/apiserver/testserver"
	"hyperkube/components/cluster/applyset"
)

// Server is a running API server with clients that authenticate as a cluster administrator. It serves built-in kinds
// and custom resources, without authorization and admission.
type Server struct {
	REST    *rest.Config
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Mapper  applyset.Mapper
}

// Start runs an API server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := testserver.Start(t, apiserver.Config{})
	cfg := s.ClientConfig("admin", "system:masters")
	cfg.QPS = -1
	return &Server{REST: cfg, Kube: kubernetes.NewForConfigOrDie(cfg), Dynamic: dynamic.NewForConfigOrDie(cfg), Mapper: s.Registry()}
}

// Client returns a client that applies ApplySets with the field manager "hyperkube".
func (s *Server) Client() *applyset.Client {
	return &applyset.Client{Dynamic: s.Dynamic, Mapper: s.Mapper, FieldManager: "hyperkube"}
}

// Widgets is the definition of the namespaced custom resource Widget in the group example.com.
const Widgets = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`
