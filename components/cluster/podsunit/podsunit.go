// Package podsunit manages hyperkube-pods.service, the systemd unit that contains the container runtime and all pods of a
// machine with cgroup version 2.
//
// The cgroup of the unit is delegated: systemd does not touch what is below it, and the runtime and the kubelet write to
// the cgroup file system there, without a call of systemd per container. The unit has no main process, so it is active while
// any process is in its cgroup. Its stop job, at the shutdown of the machine, is `hyperkube stop --suspend-pods`. The unit file
// is in /run, because `up`, `init` and `join` write it at each start.
package podsunit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"hyperkube/components/cluster/service"
	"hyperkube/internal/host/atomicfile"
	"hyperkube/internal/host/cgroup"
	"hyperkube/internal/host/hostjournal"
	"hyperkube/internal/host/layout"
)

// Journal is the name of the journal of host changes that Start makes.
const Journal = "pods-unit"

const (
	name = "hyperkube-pods.service"
	// file is in the directory of units that do not survive a reboot.
	file = "/run/systemd/system/" + name
	// cgroupRoot is the cgroup of the unit. It is in the root slice, so that pods compete with system.slice for CPU time as
	// they do without the unit.
	cgroupRoot = "/" + name
	// formerPods is the cgroup of all pods without the unit. A machine that is upgraded has pods in it.
	formerPods = "/kubepods"
	// runtimeName is the name of the cgroup of a node's container runtime.
	runtimeName = "runtime"
)

// template is the template of the unit file. Units stop in the opposite of the order in which they start: so pods stop
// before hyperkube, the network and the file systems of volumes. systemd would remove an empty cgroup, so a process sleeps in
// it; systemd does not watch this process. What the stop job leaves has had its grace period, so systemd kills it with SIGKILL.
const template = `[Unit]
Description=hyperkube: container runtime and pods
Documentation=https://kubernetes.io/docs/
After=hyperkube.service hyperkube-node.service network.target nss-lookup.target remote-fs.target iscsid.service firewalld.service

[Service]
Type=forking
GuessMainPID=no
ExecStart=sh -c 'sleep infinity &'
ExecStop=%s stop --suspend-pods
TimeoutStopSec=85s
KillSignal=SIGKILL
Slice=-.slice
Delegate=yes
CPUWeight=%d
TasksMax=infinity
OOMScoreAdjust=-999
OOMPolicy=continue
`

// find returns the cgroups of the machine if it runs pods in the unit: with systemd, cgroup version 2 and the default
// paths. Otherwise it returns nil. l are the paths of the machine's first node; for an additional node it also returns
// nil.
func find(l layout.Node) (*cgroup.Manager, error) {
	if !service.HasSystemd() || l.Data != layout.Default().Data {
		return nil, nil
	}
	groups, err := cgroup.Open()
	if err != nil || !groups.Unified() {
		return nil, err
	}
	return groups, nil
}

// Layout returns the paths l with the cgroup of the unit as the parent of all cgroups, if the machine runs pods in the
// unit. While pods run that an earlier version started outside of the unit, it returns l: they stay where they are
// until they stop, at the latest until the next boot, and new pods join them.
func Layout(l layout.Node) (layout.Node, error) {
	groups, err := find(l)
	if groups != nil && !groups.Populated(formerPods) {
		l.CgroupRoot = cgroupRoot
	}
	return l, err
}

// inUnit reports whether the cgroups of a node are below that of the unit.
func inUnit(l layout.Node) bool {
	return l.CgroupRoot == cgroupRoot || strings.HasPrefix(l.CgroupRoot, cgroupRoot+"/")
}

// RuntimeCgroup returns the cgroup of the node's container runtime, or "" if that belongs to no unit. A cgroup with
// controllers cannot contain both processes and other cgroups.
func RuntimeCgroup(l layout.Node) string {
	if !inUnit(l) {
		return ""
	}
	return filepath.Join(l.CgroupRoot, runtimeName)
}

// StopSocket returns the socket on which the kubelet of the node waits for the stop job of the unit or of an OpenRC service.
// It returns "" if there is no such job: without systemd and a service of OpenRC, and if the paths are not the default paths
// of a machine. The stop job also stops pods outside of the unit.
func StopSocket(l layout.Node) string {
	data := layout.Default().Data
	if !service.HasSystemd() && !service.OpenRCStopsPods() {
		return ""
	}
	if l.Data != data && !strings.HasPrefix(l.Data, data+"/") {
		return ""
	}
	return filepath.Join(l.Run, "suspend.sock")
}

// text returns the content of the unit file with the hyperkube binary at the path program.
func text(program string) []byte {
	weight := cgroup.CPUWeight(uint64(runtime.NumCPU()) * 1024)
	return fmt.Appendf(nil, template, service.Quote(program), weight)
}

// Start writes and starts the unit, if the machine runs pods in it and it is not active with the same settings. It
// records the changes in a journal. The start does not wait for other units: the unit is ordered after that of
// hyperkube, which may be starting it.
func Start(ctx context.Context, l layout.Node) error {
	groups, err := find(l)
	if err != nil || groups == nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the hyperkube binary: %w", err)
	}
	want := text(self)
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the systemd unit of pods: %w", err)
	}
	changed, active := !bytes.Equal(before, want), groups.Exists(cgroupRoot)
	if active && !changed {
		return moveSleeper(groups)
	}
	journal, err := hostjournal.Open(l.Journal(Journal))
	if err != nil {
		return err
	}
	defer journal.Close()
	err = hostjournal.RecordControllers(journal, groups)
	if err == nil {
		err = journal.Record(hostjournal.Change{Kind: hostjournal.Dir, Name: file})
	}
	if err != nil {
		return err
	}
	if changed {
		if err := write(want); err != nil {
			return err
		}
		// systemd reads the file of a unit that it has not loaded when it starts the unit.
		if before != nil || active {
			if err := service.Systemctl(ctx, "daemon-reload"); err != nil {
				return err
			}
		}
	}
	if err := service.Systemctl(ctx, "start", "--job-mode=ignore-dependencies", name); err != nil {
		return err
	}
	return moveSleeper(groups)
}

// moveSleeper moves the process that the unit has started to the cgroup of the runtime, because the kernel does not enable
// controllers for the children of a cgroup that contains processes.
func moveSleeper(groups *cgroup.Manager) error {
	to := filepath.Join(cgroupRoot, runtimeName)
	if err := os.MkdirAll(groups.Dir("", to), 0o755); err != nil {
		return fmt.Errorf("creating the cgroup of the container runtime: %w", err)
	}
	_, err := groups.Move(cgroupRoot, to, func(int) bool { return true })
	return err
}

// write writes the unit file and creates its directory.
func write(text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("creating the directory of transient systemd units: %w", err)
	}
	if err := atomicfile.Write(atomicfile.File{Path: file, Data: text, Mode: 0o644}); err != nil {
		return fmt.Errorf("writing the systemd unit of pods: %w", err)
	}
	return nil
}

// Remove stops the unit, which kills what is left in its cgroup, and deletes the unit file. It does nothing if there is
// no file. The pods, the runtime and the kubelet must have stopped, so that the stop job has nothing to do.
func Remove(ctx context.Context, l layout.Node) error {
	if groups, err := find(l); err != nil || groups == nil {
		return err
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	err := service.Systemctl(ctx, "stop", name)
	if removeErr := os.Remove(file); removeErr != nil && !errors.Is(removeErr, os.ErrNotExist) {
		err = errors.Join(err, fmt.Errorf("removing the systemd unit of pods: %w", removeErr))
	}
	return errors.Join(err, service.Systemctl(ctx, "daemon-reload"))
}
