package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/control"
	"hyperkube/internal/pod/podutil"
)

// desiredActive returns how many pods of the Job should be active: spec.parallelism, but not more than the completions
// that are left.
func (s *state) desiredActive() int {
	j := s.job
	parallelism := 1
	if j.Spec.Parallelism != nil {
		parallelism = int(*j.Spec.Parallelism)
	}
	if j.Spec.Completions == nil {
		if s.succeeded > 0 {
			return len(s.active)
		}
		return parallelism
	}
	left := int(*j.Spec.Completions) - int(s.succeeded) - s.failedIndexes.total()
	return max(0, min(parallelism, left))
}

// manage creates or discards pods until the desired number is active. wait is the back-off before new pods may be
// created; if it is positive, manage schedules another sync.
func (s *state) manage(ctx context.Context, wait time.Duration) error {
	want, have := s.desiredActive(), len(s.active)
	occupied := have
	if onlyFailed(s.job) {
		occupied += len(s.terminating)
	}
	if victims := s.victims(have - want); len(victims) > 0 {
		return s.discard(ctx, victims[:min(len(victims), maxCreate)])
	}
	n := min(want-occupied, maxCreate)
	if n <= 0 {
		return nil
	}
	s.action = "pods_created"
	var free []int
	if isIndexed(s.job) {
		free = s.freeIndexes(n)
		n = len(free)
	}
	if s.job.Spec.BackoffLimitPerIndex != nil {
		// Each index has a separate back-off, during which it remains allocated.
		free, wait = s.afterBackoff(free)
		n = len(free)
		if wait > 0 {
			s.AddAfter(key(s.job), wait)
		}
	} else if wait > 0 {
		s.AddAfter(key(s.job), wait)
		return nil
	}
	if n == 0 {
		return nil
	}
	return s.create(ctx, n, free)
}

// afterBackoff divides indexes that need a pod, for Jobs with a back-off per index. It returns those whose back-off is
// over, and the shortest remaining back-off of the others, or 0.
func (s *state) afterBackoff(indexes []int) (now []int, wait time.Duration) {
	for _, i := range indexes {
		failures := s.attempts[i] + s.ignored[i]
		left := backoffAfter(int(failures)) - s.env.Clock.Since(s.failedAt[i])
		switch {
		case failures == 0 || left <= 0:
			now = append(now, i)
		case wait == 0 || left < wait:
			wait = left
		}
	}
	return now, wait
}

// victims returns the active pods to discard, at least n. For an indexed Job, it returns all pods without an index,
// with a finished index or with the index of another pod; then, up to n, the pods that made the least progress.
func (s *state) victims(n int) (out []*corev1.Pod) {
	rest := slices.Clone(s.active)
	sort.Sort(control.Victims{Pods: rest, Now: s.env.Clock.Now(), Plain: true})
	if isIndexed(s.job) {
		kept, seen := []*corev1.Pod(nil), map[int]bool{}
		for _, p := range slices.Backward(rest) {
			i, ok := indexOf(p)
			if !ok || i >= s.limit() || s.completedIndexes.has(i) || s.failedIndexes.has(i) || seen[i] {
				out = append(out, p)
				continue
			}
			seen[i] = true
			kept = append(kept, p)
		}
		slices.Reverse(kept)
		rest = kept
	}
	if more := n - len(out); more > 0 {
		out = append(out, rest[:more]...)
	}
	return out
}

// freeIndexes returns the first n completion indexes of an indexed Job that are not finished and whose pod, if there
// is one, can be replaced.
func (s *state) freeIndexes(n int) (out []int) {
	taken := map[int]bool{}
	for _, p := range s.active {
		if i, ok := indexOf(p); ok {
			taken[i] = true
		}
	}
	if onlyFailed(s.job) {
		for _, p := range s.terminating {
			if i, ok := indexOf(p); ok {
				taken[i] = true
			}
		}
	}
	for i := 0; i < s.limit() && len(out) < n; i++ {
		if !taken[i] && !s.completedIndexes.has(i) && !s.failedIndexes.has(i) {
			out = append(out, i)
		}
	}
	return out
}

// create creates n pods. For an indexed Job, free contains their indexes. The pods that could be created count as
// active in s.next.
func (s *state) create(ctx context.Context, n int, free []int) error {
	j := s.job
	var todo chan int
	if isIndexed(j) {
		todo = make(chan int, n)
		for _, i := range free {
			todo <- i
		}
	}
	k := key(j)
	s.expect.Expect(k, n)
	ref := metav1.NewControllerRef(j, Kind)
	var mu sync.Mutex // guards the variables below, and s.next
	made, failed := 0, 0
	done, err := control.SlowStart(n, func() error {
		pod := control.PodFrom(&j.Spec.Template, ref)
		if !tracked(pod) {
			pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
		}
		pod.GenerateName = control.PodPrefix(j.Name)
		if todo != nil {
			s.setIndex(pod, <-todo)
		}
		_, err := s.pods.Create(ctx, j.Namespace, pod, j)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			s.next.Active++
			made++
		} else {
			failed++
		}
		return err
	})
	s.metrics.created(s.job, s.failed, len(s.terminating), made, failed)
	for range n - done {
		s.expect.Created(k)
	}
	return err
}

// setIndex gives a new pod the completion index i: as annotation, label, hostname, part of the name, and environment
// variable of its containers.
func (s *state) setIndex(pod *corev1.Pod, i int) {
	text := strconv.Itoa(i)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	if s.job.Spec.BackoffLimitPerIndex != nil {
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(int(s.attempts[i]))
		if n := s.ignored[i]; n > 0 {
			pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(int(n))
		}
	}
	pod.Spec.Hostname = fmt.Sprintf("%s-%d", s.job.Name, i)
	pod.GenerateName = namePrefix(s.job.Name, i)
	env := corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
		FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation),
	}}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for c := range list {
			has := false
			for _, e := range list[c].Env {
				has = has || e.Name == env.Name
			}
			if !has {
				list[c].Env = append(list[c].Env, env)
			}
		}
	}
}

// maxPrefix is the maximum length of the prefix of a generated pod name, so that the random suffix fits.
const maxPrefix = 63 - 5

// namePrefix returns the prefix of the names of an index's pods. A long Job name is truncated so
// that the index fits.
func namePrefix(job string, i int) string {
	end := fmt.Sprintf("-%d-", i)
	return job[:min(len(job), max(0, maxPrefix-len(end)))] + end
}

// discard deletes active pods that are not needed. It removes their finalizer first, so that they do not count as
// failed.
func (s *state) discard(ctx context.Context, pods []*corev1.Pod) error {
	if err := s.release(ctx, s.job, pods); err != nil {
		return err
	}
	return s.deletePods(ctx, pods)
}

// deletePods deletes active pods of the Job and updates the numbers of pods in s.next, the status to write.
func (s *state) deletePods(ctx context.Context, pods []*corev1.Pod) error {
	if len(pods) == 0 {
		return nil
	}
	s.action = "pods_deleted"
	k := key(s.job)
	ids := make([]string, len(pods))
	for i, p := range pods {
		ids[i] = control.ID(p)
	}
	if s.satisfied {
		// If not satisfied, keep the pending expectations of pods that the cache does not contain
		// yet.
		s.expect.Expect(k, 0, ids...)
	}
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	var mu sync.Mutex // guards s.next
	for i, p := range pods {
		wg.Go(func() {
			if err := s.pods.Delete(ctx, p, s.job); err != nil {
				s.expect.Deleted(k, ids[i])
				if !apierrors.IsNotFound(err) {
					errs[i] = err
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			s.next.Active--
			*s.next.Terminating++
			if podutil.Ready(p) {
				*s.next.Ready--
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
