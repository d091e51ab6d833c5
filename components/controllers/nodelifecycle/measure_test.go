package nodelifecycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNewZone: the function made is called once for each new zone.
func TestNewZone(t *testing.T) {
	var made []string
	z := zones{byName: map[string]*zone{}, onNewZone: func(name string) { made = append(made, name) }}
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
