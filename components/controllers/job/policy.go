package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// matchFailurePolicy applies the pod failure policy of a Job to a failed pod. It returns the action of the first
// matching rule and a message with the match. If no rule matches, it returns Count and no message.
func matchFailurePolicy(j *batchv1.Job, p *corev1.Pod) (batchv1.PodFailurePolicyAction, string) {
	if j.Spec.PodFailurePolicy == nil {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	for i, rule := range j.Spec.PodFailurePolicy.Rules {
		if rule.Action == batchv1.PodFailurePolicyActionFailIndex && j.Spec.BackoffLimitPerIndex == nil {
			continue
		}
		if rule.OnExitCodes != nil {
			if c := matchExit(&p.Status, rule.OnExitCodes); c != nil {
				return rule.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
					c.Name, p.Namespace, p.Name, c.State.Terminated.ExitCode, rule.Action, i)
			}
		}
		for _, want := range rule.OnPodConditions {
			for _, cond := range p.Status.Conditions {
				if cond.Type == want.Type && cond.Status == want.Status {
					return rule.Action, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", p.Namespace, p.Name, cond.Type, rule.Action, i)
				}
			}
		}
	}
	return batchv1.PodFailurePolicyActionCount, ""
}

// matchExit returns a terminated container whose exit code matches the rule, or nil. A container with exit code 0
// never matches.
func matchExit(s *corev1.PodStatus, rule *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.State.Terminated == nil || c.State.Terminated.ExitCode == 0 || rule.ContainerName != nil && *rule.ContainerName != c.Name {
				continue
			}
			in := slices.Contains(rule.Values, c.State.Terminated.ExitCode)
			if in == (rule.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
				return c
			}
		}
	}
	return nil
}

// matchSuccessPolicy reports whether the completed indexes in done meet the success policy of a Job. If so, it returns
// a message with the rule.
func matchSuccessPolicy(j *batchv1.Job, done indexes) (string, bool) {
	if j.Spec.SuccessPolicy == nil || !isIndexed(j) || j.Spec.Completions == nil {
		return "", false
	}
	for i, rule := range j.Spec.SuccessPolicy.Rules {
		n, all := done.total(), int(*j.Spec.Completions)
		if rule.SucceededIndexes != nil {
			want := parseIndexes(*rule.SucceededIndexes, all)
			all, n = want.total(), 0
			for _, v := range want {
				for k := v.first; k <= v.last; k++ {
					if done.has(k) {
						n++
					}
				}
			}
		}
		need := all
		if rule.SucceededCount != nil {
			need = min(need, int(*rule.SucceededCount))
		}
		if n > 0 && n >= need {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
