// Package integration tests a complete API server with its embedded etcd, through its exported API only.
package integration
