// Package apiserver is the Kubernetes API: requests come in through filters/,
// are taken apart and answered by rest/, which knows of registry/ what is
// served, and are kept by internal/store. See docs/design.md.
package apiserver
