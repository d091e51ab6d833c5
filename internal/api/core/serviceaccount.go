package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
)

func serviceAccount() api.Kind[*corev1.ServiceAccount] {
	return api.Kind[*corev1.ServiceAccount]{
		Names: api.Names{
			Kind:       "ServiceAccount",
			Plural:     "serviceaccounts",
			ShortNames: []string{"sa"},
		},
		Version:       "v1",
		Scope:         api.Namespaced,
		New:           func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
		NewList:       func() runtime.Object { return &corev1.ServiceAccountList{} },
		PrepareCreate: func(_ context.Context, sa *corev1.ServiceAccount) { keepSecretNames(sa) },
		Warnings:      serviceAccountWarnings,
		Update: api.KindUpdate[*corev1.ServiceAccount]{
			AsNew:   true,
			Prepare: func(_ context.Context, sa, _ *corev1.ServiceAccount) { keepSecretNames(sa) },
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.AgeColumn,
		},
		Row: func(sa *corev1.ServiceAccount) []any {
			return []any{sa.Name, api.Age(sa.CreationTimestamp)}
		},
	}
}

// keepSecretNames clears all fields of the account's references to Secrets except the name, because
// the Secrets are always in the account's namespace.
func keepSecretNames(sa *corev1.ServiceAccount) {
	for i := range sa.Secrets {
		sa.Secrets[i] = corev1.ObjectReference{Name: sa.Secrets[i].Name}
	}
}

const enforceMountableSecrets = "kubernetes.io/enforce-mountable-secrets"

func serviceAccountWarnings(_ context.Context, sa, old *corev1.ServiceAccount) []string {
	if _, is := sa.Annotations[enforceMountableSecrets]; !is {
		return nil
	}
	if old != nil {
		if _, was := old.Annotations[enforceMountableSecrets]; was {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets",
		field.NewPath("metadata", "annotations").Key(enforceMountableSecrets))}
}
