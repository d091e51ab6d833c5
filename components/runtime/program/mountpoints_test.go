//go:build cgo

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMountPoints checks that mount points do not add files to a container's writable layer, and
// that the token directory exists only in containers with a token.
func TestMountPoints(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("points"))
	const token = "/var/run/secrets/kubernetes.io/serviceaccount"
	without := n.startContainer(pod, shell("without", "echo ready; exec sleep 1000"))
	source := n.path("token")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	config := shell("with", "echo ready; exec sleep 1000")
	config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: token, HostPath: source, Readonly: true})
	with := n.startContainer(pod, config)
	for name, c := range map[string]struct {
		id   string
		want string
	}{"without": {without, "no"}, "with": {with, "yes"}} {
		out, err := n.exec(c.id, 30, "sh", "-c", "test -d /var/run && echo yes || echo no")
		if err != nil || strings.TrimSpace(string(out.Stdout)) != c.want {
			t.Errorf("container %s has /var/run: %q, %v", name, out.GetStdout(), err)
		}
		err = filepath.WalkDir(n.path("root", "containers", c.id, "upper"), func(file string, e os.DirEntry, err error) error {
			if err == nil && e.Name() != "upper" {
				t.Errorf("container %s begins with %s", name, file)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
