// Package apiserver is the Kubernetes API server. Package filters authenticates and authorizes
// requests, package rest handles them with the resources in package registry, and internal/store
// stores the objects in etcd. See docs/development/design.md.
package apiserver
