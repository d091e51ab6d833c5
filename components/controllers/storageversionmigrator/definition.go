package storageversionmigrator

import (
	"context"
	"fmt"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	applyv1 "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// definitionManager is the field manager of the migration's status in a definition.
const definitionManager = "migration-runner-controller"

// recordStart records in the definition of a custom resource that m is running, and for which
// generation of the definition.
func (c *Controller) recordStart(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	return c.applyDefinitionStatus(ctx, m, func(crd *apiextensionsv1.CustomResourceDefinition, status *applyv1.CustomResourceDefinitionStatusApplyConfiguration) {
		status.WithConditions(c.storageMigrating(crd, apiextensionsv1.ConditionTrue, "MigrationRunning", fmt.Sprintf("Migration %s is running", m.Name)))
	})
}

// recordEnd records the result of m in the definition. If the definition is unchanged since the
// migration began, it also reduces the stored versions to the current one.
func (c *Controller) recordEnd(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	return c.applyDefinitionStatus(ctx, m, func(crd *apiextensionsv1.CustomResourceDefinition, status *applyv1.CustomResourceDefinitionStatusApplyConfiguration) {
		began := apihelpers.FindCRDCondition(crd, apiextensionsv1.StorageMigrating)
		same := began != nil && began.ObservedGeneration == crd.Generation
		succeeded := is(m, storagemigrationv1.MigrationSucceeded)
		reason, message := "MigrationFailed", "The migration has failed"
		switch {
		case succeeded && same:
			reason, message = "MigrationSucceeded", "The migration has succeeded and the stored versions have been updated"
		case succeeded:
			reason, message = "MigrationSucceeded", "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
		}
		status.WithConditions(c.storageMigrating(crd, apiextensionsv1.ConditionFalse, reason, message))
		if !succeeded || !same {
			return
		}
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				status.WithStoredVersions(v.Name)
			}
		}
	})
}

// storageMigrating returns the condition StorageMigrating for the current generation of crd.
func (c *Controller) storageMigrating(crd *apiextensionsv1.CustomResourceDefinition, status apiextensionsv1.ConditionStatus, reason, message string) *applyv1.CustomResourceDefinitionConditionApplyConfiguration {
	return applyv1.CustomResourceDefinitionCondition().WithType(apiextensionsv1.StorageMigrating).WithStatus(status).
		WithReason(reason).WithMessage(message).WithLastTransitionTime(metav1.NewTime(c.env.Clock.Now())).WithObservedGeneration(crd.Generation)
}

// applyDefinitionStatus updates the status of the CustomResourceDefinition that defines the resource of m. It calls
// say with the definition and an empty status. say adds fields to the status, which server-side apply then writes.
// After a conflict, this is repeated. It does nothing if the resource has no definition.
func (c *Controller) applyDefinitionStatus(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, say func(*apiextensionsv1.CustomResourceDefinition, *applyv1.CustomResourceDefinitionStatusApplyConfiguration)) error {
	if m.Spec.Resource.Group == "" {
		return nil
	}
	definitions := c.cfg.Definitions.CustomResourceDefinitions()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		crd, err := definitions.Get(ctx, resourceOf(m).String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := applyv1.CustomResourceDefinitionStatus()
		say(crd, status)
		// The resource version ensures that the definition did not change after it was read.
		_, err = definitions.ApplyStatus(ctx, applyv1.CustomResourceDefinition(crd.Name).WithResourceVersion(crd.ResourceVersion).WithStatus(status),
			metav1.ApplyOptions{FieldManager: definitionManager, Force: true})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("updating migration status in the definition of %s: %w", resourceOf(m), err)
	}
	return nil
}
