package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUsersOfPods runs pods with user namespaces, and checks that they own their volumes and that
// no two pods share user IDs.
func TestUsersOfPods(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.needBusybox()
	host, apart := true, false
	if _, err := s.kube.CoreV1().ConfigMaps(s.name).Create(s.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "data"}, Data: map[string]string{"key": "value"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	group := int64(4711)
	spec := func(users *bool) corev1.PodSpec {
		return corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, HostUsers: users,
			SecurityContext: &corev1.PodSecurityContext{FSGroup: &group},
			Volumes: []corev1.Volume{
				{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "data"}}}},
			},
			Containers: []corev1.Container{{
				Command: []string{"sh", "-c", `set -e
touch /empty/x /memory/x /x
ls -ln /empty/x /memory/x /x | awk '{print $3, $4}'
ls -ldn / /etc/hosts /dev/termination-log | awk '{print $3}'
cat /data/key; echo
echo bye > /dev/termination-log
awk '{print "first", $2}' /proc/self/uid_map
test $HOSTNAME = ends || exec sleep 1000`},
				VolumeMounts: []corev1.VolumeMount{{Name: "empty", MountPath: "/empty"}, {Name: "memory", MountPath: "/memory"}, {Name: "data", MountPath: "/data"}},
			}},
		}
	}
	seen := map[string]string{}
	// They run at the same time, because the user IDs of a terminated pod are reused.
	for name, users := range map[string]*bool{"host": &host, "apart": &apart, "other": &apart, "ends": &apart} {
		s.pod(name, spec(users))
		if name == "ends" {
			p := s.becomes(name, func(p *corev1.Pod) bool {
				return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
			})
			if done := p.Status.ContainerStatuses[0].State.Terminated; done == nil || done.Message != "bye\n" {
				t.Errorf("it terminated with %v", done)
			}
			continue
		}
		var log []byte
		s.eventually(30*time.Second, func() (err error) {
			log, err = s.kube.CoreV1().Pods(s.name).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(s.ctx)
			if err == nil && !strings.Contains(string(log), "first") {
				err = fmt.Errorf("it printed %q", log)
			}
			return err
		})
		text, first, _ := strings.Cut(string(log), "first ")
		if want := "0 4711\n0 4711\n0 0\n0\n0\n0\nvalue\n"; text != want {
			t.Errorf("%s printed %q, want %q", name, log, want)
		}
		if other, ok := seen[first]; ok || (strings.TrimSpace(first) == "0") != *users {
			t.Errorf("the user IDs of %s start at %q, like those of %q", name, first, other)
		}
		seen[first] = name
	}
}
