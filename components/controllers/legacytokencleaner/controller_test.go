package legacytokencleaner

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
	"hyperkube/internal/credentials/tokens"
)

func TestClean(t *testing.T) {
	const day = 24 * time.Hour
	ago := func(d time.Duration) string { return controltest.Now.Add(-d).UTC().Format(tokens.Day) }
	const stays, marked, goes = "stays", "is marked", "goes"
	for _, tc := range []struct {
		name    string
		tracked string
		age     time.Duration
		labels  map[string]string
		manual  bool
		mounted bool
		want    string
	}{
		{"unused", ago(400 * day), 400 * day, nil, false, false, marked},
		{"unused for two periods", ago(800 * day), 800 * day, map[string]string{tokens.LastUsedLabel: ago(500 * day)}, false, false, marked},
		{"used", ago(400 * day), 400 * day, map[string]string{tokens.LastUsedLabel: ago(300 * day)}, false, false, stays},
		{"used long ago", ago(400 * day), 400 * day, map[string]string{tokens.LastUsedLabel: "x"}, false, false, stays},
		{"tracked for less than a period", ago(300 * day), 400 * day, nil, false, false, stays},
		{"not tracked", "", 400 * day, nil, false, false, stays},
		{"recently created", ago(400 * day), 300 * day, nil, false, false, stays},
		{"created manually", ago(400 * day), 400 * day, nil, true, false, stays},
		{"mounted", ago(400 * day), 400 * day, nil, false, true, stays},
		{"marked as invalid", ago(800 * day), 800 * day, map[string]string{tokens.InvalidSinceLabel: ago(300 * day)}, false, false, stays},
		{"marked as invalid long ago", ago(800 * day), 800 * day, map[string]string{tokens.InvalidSinceLabel: ago(366 * day)}, false, false, goes},
		{"invalid mark", ago(800 * day), 800 * day, map[string]string{tokens.InvalidSinceLabel: "x"}, false, false, marked},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "1"}}
			if !tc.manual {
				sa.Secrets = []corev1.ObjectReference{{Name: "s"}}
			}
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: "s", UID: "2", Labels: tc.labels, CreationTimestamp: metav1.NewTime(controltest.Now.Add(-tc.age)),
					Annotations: map[string]string{corev1.ServiceAccountNameKey: "a", corev1.ServiceAccountUIDKey: "1"},
				},
				Type: corev1.SecretTypeServiceAccountToken,
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			if tc.mounted {
				pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
			}
			since := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: tokens.TrackingName}}
			if tc.tracked != "" {
				since.Data = map[string]string{tokens.TrackingKey: tc.tracked}
			}
			f := controltest.New(t, sa, secret, pod, since)
			c, err := New(f.Env, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Drain(context.Background()); err != nil {
				t.Fatal(err)
			}
			got, err := f.Kube.CoreV1().Secrets("ns").Get(context.Background(), "s", metav1.GetOptions{})
			is := stays
			switch {
			case apierrors.IsNotFound(err):
				is = goes
			case err != nil:
				t.Fatal(err)
			case got.Labels[tokens.InvalidSinceLabel] == ago(0):
				is = marked
			}
			if is != tc.want {
				t.Errorf("got %s, want %s", is, tc.want)
			}
		})
	}
}
