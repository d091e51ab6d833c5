//go:build cgo

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMountsAhead compares the mounts of a container whose mounts were created ahead with those of
// a container for which libcontainer has created all mounts.
func TestMountsAhead(t *testing.T) {
	n := newNode(t).imported()
	pod := n.run(n.pod("ahead"))
	dir, file := n.path("dir"), n.path("dir", "file")
	for _, d := range []string{dir, n.path("extra")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	see := func(name string, propagation runtimeapi.MountPropagation) (mounts, devices []string) {
		config := shell(name, "echo ready; exec sleep 1000")
		config.Mounts = append(config.Mounts,
			&runtimeapi.Mount{ContainerPath: "/extra", HostPath: n.path("extra"), Propagation: propagation},
			&runtimeapi.Mount{ContainerPath: "/data/below", HostPath: dir, Readonly: true},
			&runtimeapi.Mount{ContainerPath: "/data/recursive", HostPath: dir, Readonly: true, RecursiveReadOnly: true},
			&runtimeapi.Mount{ContainerPath: "/data/file", HostPath: file})
		id := n.startContainer(pod, config)
		run := func(command string) []string {
			out, err := n.exec(id, 30, "sh", "-c", command)
			if err != nil || out.ExitCode != 0 {
				t.Fatalf("%s: %v, %s", command, err, out.GetStderr())
			}
			return strings.Split(strings.TrimSpace(string(out.Stdout)), "\n")
		}
		ids := regexp.MustCompile(`^\d+ \d+ \d+:\d+ `)
		for _, line := range run("cat /proc/self/mountinfo") {
			// Mask IDs and propagation from the host, which differ between containers.
			line = strings.ReplaceAll(ids.ReplaceAllString(line, ""), id, "ID")
			before, after, _ := strings.Cut(line, " - ")
			if fields := strings.Fields(before); fields[1] == "/" {
				after, _, _ = strings.Cut(after, " ") // options contain the layer directories
			} else if fields[1] == "/extra" {
				continue
			}
			before, _, _ = strings.Cut(before, " master:")
			if strings.HasPrefix(before, "/ /sys/fs/cgroup rw") && strings.HasPrefix(after, "tmpfs") {
				continue // below the read-only copy of it with which libcontainer covers it
			}
			mounts = append(mounts, strings.TrimSpace(before)+" - "+after)
		}
		slices.Sort(mounts)
		mounts = slices.Compact(mounts)
		return mounts, run("cd /dev && ls -ln . | awk '{print $1, $2, $3, $4, $5, $6}; /->/ {print $NF}' && ls -lnd /data /data/* && id && cat /data/file && ls /sys/class/net && ls -ld /sys/fs/cgroup/*")
	}
	mounts, devices := see("ahead", runtimeapi.MountPropagation_PROPAGATION_PRIVATE)
	// Mounts with propagation are created by libcontainer.
	wantMounts, wantDevices := see("by-library", runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER)
	strip := func(list []string) []string {
		// Mask times and the link counts of directories that change.
		clock := regexp.MustCompile(`[A-Z][a-z]{2} +\d+ +\d+:\d+`)
		for i := range list {
			list[i] = clock.ReplaceAllString(list[i], "TIME")
		}
		return list
	}
	if !slices.Equal(mounts, wantMounts) {
		t.Errorf("mounts are\n%s\nwith libcontainer\n%s", strings.Join(mounts, "\n"), strings.Join(wantMounts, "\n"))
	}
	if devices, wantDevices = strip(devices), strip(wantDevices); !slices.Equal(devices, wantDevices) {
		t.Errorf("devices are\n%s\nwith libcontainer\n%s", strings.Join(devices, "\n"), strings.Join(wantDevices, "\n"))
	}
	log, err := os.ReadFile(n.log)
	if err != nil || strings.Contains(string(log), "creating mount namespace ahead failed") {
		t.Errorf("mounts were not created ahead: %v", err)
	}
}
