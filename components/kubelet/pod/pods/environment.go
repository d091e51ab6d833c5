package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"hyperkube/components/kubelet/pod/env"
	"hyperkube/components/kubelet/pod/volume"
)

// environment returns the environment variables of a container: those of its Services, its envFrom sources
// and its env list. It reads ConfigMaps and Secrets, and waits until the Services are synced unless the pod
// is static.
func (t *translator) environment(ctx context.Context, pod *v1.Pod, c *v1.Container, in containerInput) ([]env.Var, error) {
	var services []env.Var
	if t.node.Services != nil {
		// A static pod may be the API server that provides the services, so do not wait for them.
		all, err := t.node.Services(ctx, !IsStatic(pod))
		if err != nil {
			return nil, err
		}
		services = env.Services(all, pod.Namespace, pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks)
	}
	return env.Make(ctx, env.Input{
		Pod: pod, Container: c, Objects: t.objects, Services: services,
		At:          env.Addresses{PodIPs: in.ips, HostIPs: t.node.IPs()},
		Allocatable: t.node.Allocatable(),
		File:        func(ref *v1.FileKeySelector) (string, bool, error) { return fileKey(in.volumes, ref) },
		Warn: func(message string) {
			t.event(pod, "", true, "InvalidEnvironmentVariableNames", message)
		},
	})
}

// maxEnvFile is the maximum size of an env file in bytes. Data beyond it is ignored.
const maxEnvFile = 1 << 20

// fileKey returns the value of a variable in an env file that another container has written to a volume of
// the pod (FileKeyRef). volumes are the pod's mounted volumes by name. found is false if the file does not
// set the variable or sets it to "". As upstream, the error does not name the cause.
func fileKey(volumes map[string]volume.Result, ref *v1.FileKeySelector) (value string, found bool, err error) {
	v, ok := volumes[ref.VolumeName]
	if !ok || v.Path == "" {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	// An absolute path is relative to the volume.
	text, err := readRegularFile(v.Path, strings.TrimLeft(ref.Path, "/"))
	if err == nil {
		value, err = env.FromFile(text, ref.Key)
	}
	if err != nil {
		return "", false, errors.New("couldn't parse env file")
	}
	return value, value != "", nil
}

// readRegularFile returns the first maxEnvFile bytes of the file path in the volume directory dir. It returns
// an error for anything but a regular file, such as a link out of the volume or a pipe.
func readRegularFile(dir, path string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("not a regular file"))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile))
	return string(text), err
}
