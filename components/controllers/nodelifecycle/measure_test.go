package nodelifecycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestZoneMade: of each zone that there has not been before it is told once.
func TestZoneMade(t *testing.T) {
	var made []string
	z := zones{byName: map[string]*zone{}, made: func(name string) { made = append(made, name) }}
	for name, in := range map[string]string{"a": "east", "b": "east", "c": "west"} {
		n := &corev1.Node{}
		n.Name, n.Labels = name, map[string]string{corev1.LabelTopologyZone: in}
		z.join(n, corev1.ConditionTrue)
		z.join(n, corev1.ConditionFalse)
	}
	if len(made) != 2 {
		t.Errorf("zones %q", made)
	}
}
