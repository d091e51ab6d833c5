//go:build cgo

package main

import (
	"context"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRefusals checks which requests to create a container must be rejected and which must succeed,
// as CRI's validation tests do.
func TestRefusals(t *testing.T) {
	n := newNode(t).imported()
	ctx := context.Background()
	pod := n.run(n.pod("p"))
	dir := t.TempDir()
	image := &runtimeapi.ImageSpec{Image: "busybox"}
	mount := func(m *runtimeapi.Mount) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) { c.Mounts = []*runtimeapi.Mount{m} }
	}
	for name, change := range map[string]func(*runtimeapi.ContainerConfig){
		"a group without a user": func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 5}
		},
		"unknown user name": func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.RunAsUsername = "no-such-user" },
		"recursively read-only": mount(&runtimeapi.Mount{ContainerPath: "/m", HostPath: dir, Readonly: true, RecursiveReadOnly: true,
			Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}),
		"recursively read-only, both ways": mount(&runtimeapi.Mount{ContainerPath: "/m", HostPath: dir, Readonly: true, RecursiveReadOnly: true,
			Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}),
		"recursively read-only, and writable":    mount(&runtimeapi.Mount{ContainerPath: "/m", HostPath: dir, RecursiveReadOnly: true}),
		"a writable volume of an image":          mount(&runtimeapi.Mount{ContainerPath: "/m", Image: image}),
		"what is not in the image":               mount(&runtimeapi.Mount{ContainerPath: "/m", Image: image, Readonly: true, ImageSubPath: "not/there"}),
		"a volume of an image that is not there": mount(&runtimeapi.Mount{ContainerPath: "/m", Image: &runtimeapi.ImageSpec{Image: "other"}, Readonly: true}),
		"an image that is not there":             func(c *runtimeapi.ContainerConfig) { c.Image = &runtimeapi.ImageSpec{Image: "other"} },
		"a device that is not there": func(c *runtimeapi.ContainerConfig) {
			c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "example.com/no=device"}}
		},
		"a profile of seccomp that is not there": func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: dir + "/no.json"}
		},
	} {
		id, err := n.create(pod, shell("c", "true", change))
		if err == nil {
			t.Errorf("%s was accepted", name)
			_, err = n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
			if err != nil {
				t.Error(err)
			}
		}
	}
	// A rejected request leaves nothing behind, so the name can be reserved again.
	if list, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); err != nil || len(list.Containers) != 0 {
		t.Errorf("rejected containers exist: %v, %v", list, err)
	}

	const unknown = "00000000-0000-0000-0000-000000000000"
	for range 2 {
		for name, err := range map[string]error{
			"stopping a pod":        second(n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: unknown})),
			"removing a pod":        second(n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: unknown})),
			"stopping a container":  second(n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: unknown})),
			"removing a container":  second(n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: unknown})),
			"removing an image":     second(n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: strings.Repeat("0", 64)}})),
			"removing an image too": second(n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "other:1"}})),
		} {
			if err != nil {
				t.Errorf("%s that is not there: %v", name, err)
			}
		}
	}
	if st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "other:1"}}); err != nil || st.Image != nil {
		t.Errorf("the status of an image that is not there: %v, %v", st, err)
	}

	id := n.startContainer(pod, shell("c", "sleep 1000", func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.MaskedPaths = []string{"/etc/passwd"}
		c.Linux.SecurityContext.ReadonlyPaths = []string{"/tmp"}
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/image", Image: image, Readonly: true}}
	}))
	st := n.status(id)
	if len(st.Mounts) != 1 || st.Mounts[0].GetImage().GetImageRef() != st.ImageId || st.ImageId == "" {
		t.Errorf("the volume is of image %q, the container of %q", st.Mounts, st.ImageId)
	}
	if _, err := n.exec(id, 1, "sleep", "987"); err == nil {
		t.Error("a command of a second may take longer")
	}
	for command, want := range map[string]string{
		"ps | grep '[s]leep 987'; true":              "",
		"/etc/passwd 2>&1":                           "Permission denied",
		"touch /tmp/x 2>&1":                          "Read-only file system",
		"touch /image/x 2>&1":                        "Read-only file system",
		"/image/bin/busybox true && echo executable": "executable",
	} {
		out, err := n.exec(id, 30, "sh", "-c", command)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(out.Stdout); !strings.Contains(got, want) || want == "" && strings.Contains(got, "sleep 987") {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }
