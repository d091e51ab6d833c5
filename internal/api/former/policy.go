package former

import (
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// emptyBudgetLabel is of expressions that stand for what an empty selector
// means in the other version.
const emptyBudgetLabel = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"

// policyVersions: in v1beta1 an empty selector selects no pods, in v1 all.
func policyVersions() []version {
	return []version{
		{"PodDisruptionBudget", policyv1.SchemeGroupVersion, policyv1beta1.SchemeGroupVersion, alike(func(now *policyv1.PodDisruptionBudget) error {
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
