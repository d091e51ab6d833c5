package former

import (
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// emptyBudgetLabel is the key of a requirement in the selector of a PodDisruptionBudget. An empty selector matches no
// pods in policy/v1beta1 and all pods in policy/v1. The requirement keeps the former meaning in the other version.
const emptyBudgetLabel = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"

// policyVersions returns the reader of PodDisruptionBudgets in v1beta1, where an empty selector
// matches no pods. In v1 it matches all pods.
func policyVersions() []version {
	return []version{
		{"PodDisruptionBudget", policyv1.SchemeGroupVersion, policyv1beta1.SchemeGroupVersion, sameFields(func(now *policyv1.PodDisruptionBudget) error {
			s := now.Spec.Selector
			if s == nil {
				return nil
			}
			ours := func(r metav1.LabelSelectorRequirement) bool { return r.Key == emptyBudgetLabel }
			switch e := s.MatchExpressions; {
			case len(s.MatchLabels) == 0 && len(e) == 0:
				s.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: emptyBudgetLabel, Operator: metav1.LabelSelectorOpExists}}
			case len(s.MatchLabels) == 0 && len(e) == 1 && ours(e[0]) && e[0].Operator == metav1.LabelSelectorOpDoesNotExist && len(e[0].Values) == 0:
				now.Spec.Selector = &metav1.LabelSelector{}
			default:
				s.MatchExpressions = slices.DeleteFunc(e, ours)
			}
			return nil
		})},
	}
}
