package csrcleaner

import (
	"context"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/components/controllers/internal/controltest"
)

func TestClean(t *testing.T) {
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(controltest.Now.Add(-d)) }
	with := func(kind certificatesv1.RequestConditionType, age time.Duration) []certificatesv1.CertificateSigningRequestCondition {
		return []certificatesv1.CertificateSigningRequestCondition{{Type: kind, LastUpdateTime: ago(age)}}
	}
	for _, tc := range []struct {
		name       string
		age        time.Duration
		conditions []certificatesv1.CertificateSigningRequestCondition
		gone       bool
	}{
		{"pending", 23 * time.Hour, nil, false},
		{"pending for too long", 25 * time.Hour, nil, true},
		{"just approved", 2 * time.Hour, with(certificatesv1.CertificateApproved, time.Minute), false},
		{"approved", 2 * time.Hour, with(certificatesv1.CertificateApproved, 2*time.Hour), true},
		{"denied", 2 * time.Hour, with(certificatesv1.CertificateDenied, 2*time.Hour), true},
		{"failed", 2 * time.Hour, with(certificatesv1.CertificateFailed, 59*time.Minute), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := controltest.New(t, &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: ago(tc.age)},
				Status:     certificatesv1.CertificateSigningRequestStatus{Conditions: tc.conditions},
			})
			c, err := New(f.Env)
			if err != nil {
				t.Fatal(err)
			}
			c.Add("r")
			if err := c.Drain(context.Background()); err != nil {
				t.Fatal(err)
			}
			all, err := f.Kube.CertificatesV1().CertificateSigningRequests().List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if gone := len(all.Items) == 0; gone != tc.gone {
				t.Errorf("gone %v", gone)
			}
		})
	}
}
